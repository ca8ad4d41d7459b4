// The training operators of torch.ops.tilewise.*: whole sequences with and without a selection of blocks,
// their gradients and those of listed tokens, and the functions that prepare selections.
#pragma once

#include <torch/csrc/stable/library.h>

namespace tilewise::bindings {

void implement_training(torch::stable::detail::StableLibrary& library);

}  // namespace tilewise::bindings
