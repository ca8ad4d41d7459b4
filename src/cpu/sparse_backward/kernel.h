// The CPU kernels of sparse_prefill_bwd, one for each instruction set.
#pragma once

#include "core/kernel_table.h"
#include "ops/sparse_backward.h"

namespace tilewise::cpu {

KernelTable<SparseBackward> sparse_backward_kernels();

}  // namespace tilewise::cpu
