// How kernels that merge pieces are launched; merge.cuh says what their warps do.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "visit/interval.h"

namespace tilewise::cuda {

inline constexpr int kSliceColumns = 128;  // of a row, a unit's
inline constexpr int kPiecesOfWarp = 8;
inline constexpr int kMostGroups = 16;
inline constexpr int kLeastWarps = 4;  // of a block

/// Warps that share the pieces of a unit: a power of two.
TW_HD constexpr int merge_groups(int64_t pieces) {
  int groups = 1;
  while (groups < kMostGroups && groups * kPiecesOfWarp < pieces) groups *= 2;
  return groups;
}

struct MergeGrid {
  int64_t blocks;
  int threads;
};

/// For units of at most so many pieces; a unit is 128 columns of a row.
inline MergeGrid merge_grid(int64_t units, int64_t pieces) {
  const int groups = merge_groups(pieces);
  const int warps = groups < kLeastWarps ? kLeastWarps : groups;
  return {visit::ceil_div(units * groups, warps), 32 * warps};
}

}  // namespace tilewise::cuda
