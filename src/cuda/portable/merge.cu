// Merges the pieces of query tiles and ends their rows.
#include "cuda/portable/merge.cuh"

#include "cuda/portable/instances.h"
#include "cuda/portable/params.h"
#include "softmax/state.h"

namespace tilewise::cuda {
namespace {

// The state of a row from those of its pieces, which are `stride` rows apart.
__device__ softmax::RowState merged_state(const float2* state, int64_t stride, int pieces, int lane) {
  float most = -softmax::kInfinity;
  for (int i = lane; i < pieces; i += 32) most = max_or_nan(most, state[i * stride].x);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) most = max_or_nan(most, __shfl_xor_sync(kAllLanes, most, step));
  float sum = 0.0f;
  for (int i = lane; i < pieces; i += 32) {
    const float2 part = state[i * stride];
    sum = fmaf(part.y, weight_of(part.x, most), sum);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return {most, sum};
}

__global__ void __launch_bounds__(kMergeThreads) merge_kernel(const __grid_constant__ ForwardParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const MergePlace place = MergePlace::of(kFusedDim);
  await_last_kernel();
  const int64_t stride = p.tiles.tile_rows;
  const int64_t tile_index = visit::quotient(place.row, stride);
  const auto row = static_cast<int32_t>(visit::remainder(place.row, stride));
  const auto [slot, pieces] = p.partials.tiles[tile_index];
  // A tile of one piece was ended by the block that did it. What is no plan must not be followed.
  if (pieces <= 1 || slot < 0 || int64_t{slot} + pieces > p.partials.slots) return;
  const visit::QueryTile tile = p.tiles.at(tile_index);
  if (row >= tile.rows()) return;
  const int64_t first = slot * stride + row;
  const float2* states = p.partials.state + first;
  const softmax::RowState state = merged_state(states, stride, pieces, lane);
  RowValues<1> o{.v = {}, .first = place.slice};
  const float* columns = p.partials.out + first * kFusedDim + o.column(0, lane);
  const bool has_sum = add_up_pieces(
      pieces, place.group,
      [&](int64_t i) { return PieceWeight{weight_of(states[i * stride].x, state.max), true}; },
      [&](int64_t i) { return *reinterpret_cast<const float4*>(columns + i * stride * kFusedDim); }, o);
  if (!has_sum) return;
  const RowPlace at{tile.request, tile.token(row), tile.head(row)};
  const float factor = end_row_state(p, at, state, place.slice == 0 && lane == 0);
  store_row_output(p, at, factor, p.shape.fused ? cos_sin_of(p, at.token) : nullptr, lane, o);
}

}  // namespace

const void* merge_kernel_of_forward() { return reinterpret_cast<const void*>(&merge_kernel); }

}  // namespace tilewise::cuda
