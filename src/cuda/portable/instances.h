// The forward kernel's instances. Each is compiled in a translation unit of its own, which the build writes
// (cmake/cuda_instances.cmake); this header says how they are named.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tilewise::cuda {

/// The kernel for elements T (of Q and of the decoded K), head size kDim, a row of kForwardConfigs, and keys
/// that are decoded (kRaw) or used as they lie in memory.
template <class T, int kDim, int kConfigRow, bool kRaw>
const void* forward_instance();

/// Merges the pieces of query tiles that have several, and ends their rows. For a grid of merge_grid.h.
const void* merge_kernel_of_forward();

}  // namespace tilewise::cuda
