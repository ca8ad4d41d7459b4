// Merging partial results on the CPU, one kernel per instruction set.
#pragma once

#include "core/kernel_table.h"
#include "ops/rows.h"

namespace tilewise::cpu {

KernelTable<Combine> combine_kernels();

}  // namespace tilewise::cpu
