// The operators' schemas, as torch reads them.
#pragma once

#include <span>

namespace tilewise::bindings {

/// torch.ops.tilewise.*
std::span<const char* const> native_schemas();
/// torch.ops._flashmla_C.* and torch.ops._flashmla_extension_C.*: FlashMLA's own, with defaults added.
std::span<const char* const> flashmla_schemas();
std::span<const char* const> flashmla_extension_schemas();

}  // namespace tilewise::bindings
