// KV rows into cache records and back on the CPU, one kernel per instruction set.
#pragma once

#include "core/kernel_table.h"
#include "ops/rows.h"

namespace tilewise::cpu {

KernelTable<KvMoveFamily> kv_move_kernels();

}  // namespace tilewise::cpu
