// The kernel tables: each operator family's kernels of all backends, best first.
#include <vector>

#include "cpu/combine.h"
#include "cpu/forward/kernel.h"
#include "cpu/kv_move.h"
#include "cpu/sparse_backward/kernel.h"
#include "cpu/varlen/kernels.h"
#include "cuda/kernels.h"
#include "ops/tables.h"

namespace tilewise {
namespace {

template <class F>
std::vector<const Kernel<F>*> joined(KernelTable<F> gpu, KernelTable<F> cpu) {
  std::vector<const Kernel<F>*> rows(gpu.begin(), gpu.end());
  rows.insert(rows.end(), cpu.begin(), cpu.end());
  return rows;
}

}  // namespace

KernelTable<Forward> forward_kernels() {
  static const auto rows = joined<Forward>(cuda::forward_kernels(), cpu::forward_kernels());
  return rows;
}
KernelTable<VarlenForward> varlen_forward_kernels() { return cpu::varlen_forward_kernels(); }
KernelTable<VarlenBackward> varlen_backward_kernels() { return cpu::varlen_backward_kernels(); }
KernelTable<SparseBackward> sparse_backward_kernels() { return cpu::sparse_backward_kernels(); }
KernelTable<Combine> combine_kernels() {
  static const auto rows = joined<Combine>(cuda::combine_kernels(), cpu::combine_kernels());
  return rows;
}
KernelTable<KvMoveFamily> kv_move_kernels() {
  static const auto rows = joined<KvMoveFamily>(cuda::kv_move_kernels(), cpu::kv_move_kernels());
  return rows;
}

}  // namespace tilewise
