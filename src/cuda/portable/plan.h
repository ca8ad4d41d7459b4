// Where the portable kernel finds its part of a caller's plan (ops/decode_plan.h).
#pragma once

#include <vector_types.h>

#include <algorithm>
#include <cstdint>

#include "ops/decode_plan.h"

namespace tilewise::cuda {

/// Items of a plan besides one a query tile: one more wave of blocks.
inline int64_t plan_extra_items(int64_t blocks_at_once) { return std::min(blocks_at_once, kMostExtraItems); }

/// Partial results of a plan: those of the extra items, and one more of each query tile that is cut.
inline int64_t plan_slots(int64_t num_tiles, int64_t blocks_at_once) {
  const int64_t extra = plan_extra_items(blocks_at_once);
  return extra + std::min(num_tiles, extra);
}

inline const int4* plan_items(const ForwardProblem& problem) {
  return reinterpret_cast<const int4*>(problem.plan);
}
/// Only read.
inline int2* plan_tiles(const ForwardProblem& problem) {
  return reinterpret_cast<int2*>(const_cast<int32_t*>(problem.plan) + 4 * max_plan_items(problem.shape));
}

}  // namespace tilewise::cuda
