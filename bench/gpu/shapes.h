// The shapes that a GPU is timed at.
#pragma once

#include <vector>

#include "cases/case.h"

namespace tilewise::bench {

/// Those of the performance targets, and beside every fused one the same attention alone.
std::vector<cases::Case> gpu_shapes();

/// Whether a call is short enough for its launch to matter: timed inside the replay of a graph.
bool timed_in_graph(cases::Op op);

}  // namespace tilewise::bench
