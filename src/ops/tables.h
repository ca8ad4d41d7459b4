// The kernel table of every operator, best kernel first.
#pragma once

#include "core/kernel_table.h"
#include "ops/forward.h"
#include "ops/rows.h"
#include "ops/sparse_backward.h"
#include "ops/varlen.h"

namespace tilewise {

KernelTable<Forward> forward_kernels();
KernelTable<VarlenForward> varlen_forward_kernels();
KernelTable<VarlenBackward> varlen_backward_kernels();
KernelTable<SparseBackward> sparse_backward_kernels();
KernelTable<Combine> combine_kernels();
KernelTable<KvMoveFamily> kv_move_kernels();

}  // namespace tilewise
