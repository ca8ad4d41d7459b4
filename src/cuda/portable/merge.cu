// Merges the pieces of query tiles and ends their rows: a block a row, a warp 128 columns of it.
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/instances.h"
#include "cuda/portable/key_tiles.cuh"
#include "cuda/portable/params.h"
#include "softmax/state.h"

namespace tilewise::cuda {
namespace {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ float largest_of_warp(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = max_or_nan(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// Adds the pieces up in their order. state [pieces] and out [pieces][512] of the row are `stride` rows apart.
__device__ softmax::RowState merge_row(const float2* state, const float* out, int64_t stride, int pieces,
                                       int lane, RowValues<1>& o) {
  float most = -softmax::kInfinity;
  for (int i = lane; i < pieces; i += 32) most = max_or_nan(most, state[i * stride].x);
  most = largest_of_warp(most);
  float sum = 0.0f;
#pragma unroll 8
  for (int i = 0; i < pieces; ++i) {
    const float2 part = state[i * stride];
    const float4 v = *reinterpret_cast<const float4*>(out + i * stride * kFusedDim + o.column(0, lane));
    const float weight = weight_of(part.x, most);
    sum = fmaf(part.y, weight, sum);
    o.v[0][0] = fmaf(v.x, weight, o.v[0][0]);
    o.v[0][1] = fmaf(v.y, weight, o.v[0][1]);
    o.v[0][2] = fmaf(v.z, weight, o.v[0][2]);
    o.v[0][3] = fmaf(v.w, weight, o.v[0][3]);
  }
  return {most, sum};
}

__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ ForwardParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t tile_index = blockIdx.x / p.tiles.tile_rows;
  const int64_t row = blockIdx.x % p.tiles.tile_rows;
  const visit::QueryTile tile = p.tiles.at(tile_index);
  if (row >= tile.rows()) return;
  const int32_t pieces = KeyTiles::of(p, tile).pieces(p);
  if (pieces == 1) return;  // ended by the block that did it all
  const int64_t first = tile_index * p.max_pieces * p.tiles.tile_rows + row;
  RowValues<1> o{.v = {}, .first = static_cast<int>(threadIdx.x) / 32};
  const softmax::RowState state = merge_row(p.partials.state + first, p.partials.out + first * kFusedDim,
                                            p.tiles.tile_rows, pieces, lane, o);
  store_row(p, {tile.request, tile.token(row), tile.head(row)}, state, lane, o);
}

}  // namespace

const void* merge_kernel_of_forward() { return reinterpret_cast<const void*>(&merge_kernel); }

}  // namespace tilewise::cuda
