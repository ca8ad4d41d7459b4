// The CPU kernels of dense_prefill and block_sparse_prefill, one for each instruction set.
#pragma once

#include "core/kernel_table.h"
#include "ops/varlen.h"

namespace tilewise::cpu {

KernelTable<VarlenForward> varlen_forward_kernels();
KernelTable<VarlenBackward> varlen_backward_kernels();

}  // namespace tilewise::cpu
