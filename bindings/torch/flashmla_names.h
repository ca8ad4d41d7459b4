// Other names in the library's error texts, FlashMLA's above all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tilewise/error.h"
#include "tilewise/tensor.h"

namespace tilewise::bindings {

struct Rename {
  std::string_view from;
  std::string_view to;
};

/// `text` with the operator in front of its first colon replaced by `op`, and every argument by its other
/// name.
std::string renamed_text(std::string_view text, std::string_view op, std::span<const Rename> names);

/// "<op>: <name> must be contiguous, got ...".
[[noreturn]] void refuse_strides(const char* op, const char* name, const TensorView& view);

/// Runs `work`; a refusal leaves it under the operator's and the arguments' other names.
template <class Work>
void renamed(const char* op, std::span<const Rename> names, Work work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(renamed_text(error.what(), op, names));
  }
}

}  // namespace tilewise::bindings
