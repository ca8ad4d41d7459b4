// The parts of a caller's plan (ops/decode_plan.h), as the portable kernel reads and writes them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/portable/params.h"
#include "ops/decode_plan.h"

namespace tilewise::cuda {

/// Items of a plan besides one a query tile: one more wave of blocks.
inline int64_t plan_extra_items(int64_t blocks_at_once) { return std::min(blocks_at_once, kMostExtraItems); }

/// Partial results of a plan: those of the extra items, and one more of each query tile that is cut.
inline int64_t plan_slots(int64_t num_tiles, int64_t blocks_at_once) {
  const int64_t extra = plan_extra_items(blocks_at_once);
  return extra + std::min(num_tiles, extra);
}

struct PlanParts {
  int4* items;
  PlanHeader* header;
  CutTile* cut;
};

inline PlanParts parts_of_plan(int32_t* plan, const ForwardShape& shape) {
  int32_t* header = plan + 4 * max_plan_items(shape);
  return {reinterpret_cast<int4*>(plan), reinterpret_cast<PlanHeader*>(header),
          reinterpret_cast<CutTile*>(header + 4)};
}

}  // namespace tilewise::cuda
