// The kernel tables: each operator family's kernels of all backends, best first.
#include "cpu/combine.h"
#include "cpu/forward/kernel.h"
#include "cpu/kv_move.h"
#include "ops/tables.h"

namespace tilewise {

KernelTable<Forward> forward_kernels() { return cpu::forward_kernels(); }
KernelTable<Combine> combine_kernels() { return cpu::combine_kernels(); }
KernelTable<KvMoveFamily> kv_move_kernels() { return cpu::kv_move_kernels(); }

}  // namespace tilewise
