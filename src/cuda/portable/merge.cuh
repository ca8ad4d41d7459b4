// Adding up the weighted pieces of output rows, as the merge of split rows and combine_partials do.
//
//   unit    128 columns of a row; merge_groups() warps share its pieces. Each has a run of them; then the
//           first warp adds up the sums of all in order
//   block   at least four warps, of one unit or of several
//
// The order of a row's sums follows from the number of its own pieces alone.
#pragma once

#include <cstdint>

#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/merge_grid.h"
#include "visit/rules.h"

namespace tilewise::cuda {

// What a warp of a merge grid does.
struct MergePlace {
  int64_t unit;
  int64_t units_at_once;  // of the grid
  int group;
  int groups;  // of this launch: at least those of any row

  // `pieces`: the most that a unit of this launch has.
  __device__ static MergePlace of(int64_t pieces) {
    const int groups = merge_groups(pieces);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int units_of_block = static_cast<int>(blockDim.x) / 32 / groups;
    return {int64_t{blockIdx.x} * units_of_block + warp / groups, int64_t{gridDim.x} * units_of_block,
            warp % groups, groups};
  }
};

// What a piece counts in its row; one that does not count is not read.
struct PieceWeight {
  float weight;
  bool counts;
};

// o = the sum of n pieces. weight_of(i): piece i's weight, asked of one lane; load(i): four columns of it.
// Returns whether this warp has the sum. Called by all warps of a block alike, with n = 0 where there is no
// unit left.
template <class WeightOf, class Load>
__device__ bool add_up_pieces(int64_t n, const MergePlace& place, const WeightOf& weight_of, const Load& load,
                              RowValues<1, 4>& o) {
  __shared__ float4 sums[kMostGroups][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int groups = merge_groups(n);
  const int64_t end = place.group < groups ? n * (place.group + 1) / groups : 0;
  float4 sum{};
  for (int64_t base = n * place.group / groups; base < end; base += kPiecesOfWarp) {
    const int count = static_cast<int>(visit::smaller(kPiecesOfWarp, end - base));
    const PieceWeight own = lane < count ? weight_of(base + lane) : PieceWeight{0.0f, false};
    const unsigned counting = __ballot_sync(kAllLanes, own.counts);
    float4 v[kPiecesOfWarp];
#pragma unroll
    for (int i = 0; i < kPiecesOfWarp; ++i) v[i] = (counting >> i & 1) != 0 ? load(base + i) : float4{};
#pragma unroll
    for (int i = 0; i < kPiecesOfWarp; ++i) {
      const float weight = __shfl_sync(kAllLanes, own.weight, i);
      sum.x = fmaf(v[i].x, weight, sum.x);
      sum.y = fmaf(v[i].y, weight, sum.y);
      sum.z = fmaf(v[i].z, weight, sum.z);
      sum.w = fmaf(v[i].w, weight, sum.w);
    }
  }
  if (place.groups > 1) {
    __syncthreads();  // the last unit's sums have been read
    sums[warp][lane] = sum;
    __syncthreads();
    for (int i = 1; place.group == 0 && i < groups; ++i) {
      const float4 other = sums[warp + i][lane];
      sum = {sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w};
    }
  }
  o.v[0][0] = sum.x;
  o.v[0][1] = sum.y;
  o.v[0][2] = sum.z;
  o.v[0][3] = sum.w;
  return place.group == 0;
}

}  // namespace tilewise::cuda
