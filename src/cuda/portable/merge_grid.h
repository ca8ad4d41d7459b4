// How kernels that merge pieces are launched; merge.cuh says what their blocks do.
#pragma once

#include <cstdint>

#include "visit/interval.h"

namespace tilewise::cuda {

inline constexpr int kSliceColumns = 128;  // of a row, a warp's
inline constexpr int kPiecesOfWarp = 8;    // at most, where one warp adds them up
inline constexpr int kSlicesOfBlock = 4;
inline constexpr int kMergeGroups = 16;
inline constexpr int kMergeThreads = 32 * kMergeGroups;  // at most

struct MergeGrid {
  int64_t blocks;
  int threads;
};

/// For rows of so many columns and at most so many pieces.
inline MergeGrid merge_grid(int64_t rows, int64_t columns, int64_t pieces) {
  const int64_t slices = visit::ceil_div(columns, kSliceColumns);
  if (pieces > kPiecesOfWarp) return {rows * slices, kMergeThreads};
  return {rows * visit::ceil_div(slices, kSlicesOfBlock), 32 * kSlicesOfBlock};
}

}  // namespace tilewise::cuda
