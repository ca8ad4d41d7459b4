// The CUDA rows of the kernel tables. A build without CUDA has none (absent.cpp).
#pragma once

#include "core/kernel_table.h"
#include "ops/forward.h"
#include "ops/rows.h"
#include "tilewise/ops/fused.h"

namespace tilewise::cuda {

KernelTable<Forward> forward_kernels();
KernelTable<Combine> combine_kernels();
KernelTable<KvMoveFamily> kv_move_kernels();

/// Fills a plan of decode_plan_size(problem.shape) elements, from the lengths on the device.
void make_decode_plan(const ForwardProblem& problem, const Device& device, int32_t* plan, Stream stream);

/// Whether this is a build with CUDA.
extern const bool kBuilt;

/// On the GPU where the weight lies; arguments are checked. A build without CUDA has no such weight.
void permute_q_b_proj(const PermuteQBProjArgs& args, Stream stream);
void permute_wv_proj(const PermuteWvProjArgs& args, Stream stream);

}  // namespace tilewise::cuda
