// What the machine can do at this moment: the two rates that operator times are measured against.
#pragma once

#include "cpu/isa.h"

namespace tilewise::bench {

/// FLOP/s of the instruction set's tile products (scores and accumulate in turn, operands in L2), all threads
/// busy.
double tile_rate(const cpu::Isa& isa, int threads);

/// Bytes/s of copying memory that no cache holds, all threads busy; bytes are counted once.
double copy_rate(int threads);

/// The instruction set whose kernels have this name.
const cpu::Isa& isa_of_kernel(const std::string& kernel);

}  // namespace tilewise::bench
