// Plans that the caller keeps: how the keys of a batch are cut into the blocks of a GPU kernel, made on the
// device from the lengths that lie there, for any number of calls of the same shapes.
//
// Whatever the lengths of a later call are, its results are right: a plan says where pieces begin, and the
// last piece of a query tile goes on to the end. A plan of other query tiles is not followed.
//
//   items   [max_plan_items]   query tile (-1: none), first and last KV tile, slot of the partial result (-1:
//                              the tile is not cut)
//   header                     number of query tiles that are cut, most pieces of one, number of query tiles,
//                              rows of a query tile
//   cut     [kMostExtraItems]  query tile that is cut, first slot, number of pieces
// All are four int32 each.
#pragma once

#include <cstdint>

#include "ops/forward.h"
#include "visit/interval.h"

namespace tilewise {

inline constexpr int64_t kPlanAlignment = 16;     // bytes
inline constexpr int64_t kLeastTileRows = 16;     // of a kernel that takes plans
inline constexpr int64_t kMostExtraItems = 1024;  // besides one a query tile

/// The shape alone counts, so that a plan's size is known without the device.
inline int64_t max_plan_items(const ForwardShape& shape) {
  return query_tiles(shape, kLeastTileRows).count() + kMostExtraItems;
}

/// In int32.
inline int64_t decode_plan_size(const ForwardShape& shape) {
  return 4 * (max_plan_items(shape) + 1 + kMostExtraItems);
}

}  // namespace tilewise
