// The forward attention kernels of the CPU, one per instruction set.
#pragma once

#include "core/kernel_table.h"
#include "ops/forward.h"

namespace tilewise::cpu {

KernelTable<Forward> forward_kernels();

}  // namespace tilewise::cpu
