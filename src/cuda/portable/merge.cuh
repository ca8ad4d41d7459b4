// Adding up the weighted pieces of output rows, as the merge of split rows and combine_partials do. A warp
// takes 128 columns of a row.
//
//   at most 8 pieces   a block is four warps, one for each 128 columns
//   more               a block is 16 warps for the same 128 columns; each adds up a 16th of the pieces, then
//                      the first adds up their sums in order
//
// The order of a row's sums follows from the number of its own pieces alone.
#pragma once

#include <cstdint>

#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/merge_grid.h"
#include "visit/rules.h"

namespace tilewise::cuda {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// What a warp of a merge grid does.
struct MergePlace {
  int64_t row;
  int slice;
  int group;  // of the pieces

  __device__ static MergePlace of(int64_t columns) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t slices = (columns + kSliceColumns - 1) / kSliceColumns;
    if (blockDim.x == kMergeThreads) {
      return {visit::quotient(blockIdx.x, slices), static_cast<int>(visit::remainder(blockIdx.x, slices)),
              warp};
    }
    const int64_t blocks = (slices + kSlicesOfBlock - 1) / kSlicesOfBlock;
    const auto first = static_cast<int>(visit::remainder(blockIdx.x, blocks)) * kSlicesOfBlock;
    return {visit::quotient(blockIdx.x, blocks), first + warp, 0};
  }
};

// What a piece counts in its row; one that does not count is not read.
struct PieceWeight {
  float weight;
  bool counts;
};

// o = the sum of n pieces. weight_of(i): piece i's weight, asked of one lane; load(i): four columns of it.
// Returns whether this warp has the sum. Called by all warps of a block alike.
template <class WeightOf, class Load>
__device__ bool add_up_pieces(int64_t n, int group, const WeightOf& weight_of, const Load& load,
                              RowValues<1>& o) {
  constexpr int kAtOnce = 8;
  __shared__ float4 sums[kMergeGroups][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int groups = n <= kPiecesOfWarp ? 1 : kMergeGroups;
  const int64_t end = group < groups ? n * (group + 1) / groups : 0;
  float4 sum{};
  for (int64_t base = n * group / groups; base < end; base += 32) {
    const int count = static_cast<int>(visit::smaller(32, end - base));
    const PieceWeight own = lane < count ? weight_of(base + lane) : PieceWeight{0.0f, false};
    const unsigned counting = __ballot_sync(kAllLanes, own.counts);
    for (int first = 0; first < count; first += kAtOnce) {
      float4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = (counting >> first >> i & 1) != 0 ? load(base + first + i) : float4{};
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = __shfl_sync(kAllLanes, own.weight, first + i);
        sum.x = fmaf(v[i].x, weight, sum.x);
        sum.y = fmaf(v[i].y, weight, sum.y);
        sum.z = fmaf(v[i].z, weight, sum.z);
        sum.w = fmaf(v[i].w, weight, sum.w);
      }
    }
  }
  if (groups > 1) {
    sums[group][lane] = sum;
    __syncthreads();
    if (group > 0) return false;
    for (int i = 1; i < kMergeGroups; ++i) {
      const float4 other = sums[i][lane];
      sum = {sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w};
    }
  }
  o.v[0][0] = sum.x;
  o.v[0][1] = sum.y;
  o.v[0][2] = sum.z;
  o.v[0][3] = sum.w;
  return group == 0;
}

}  // namespace tilewise::cuda
