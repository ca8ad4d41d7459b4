// Merges the pieces of query tiles and ends their rows. The grid has a unit for each row and 128 columns, or,
// with a caller's plan, goes over the query tiles that the plan cuts.
#include "cuda/portable/merge.cuh"

#include "cuda/portable/instances.h"
#include "cuda/portable/params.h"
#include "softmax/state.h"

namespace tilewise::cuda {
namespace {

constexpr int kSlices = kFusedDim / kSliceColumns;

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

// The query tile that a unit belongs to, and its pieces; none where nothing is to be merged.
__device__ CutTile cut_tile_of(const ForwardParams& p, int64_t index, int64_t count) {
  if (index >= count) return {0, 0, 0};
  const CutTile cut = p.partials.cut[index];
  // A tile of one piece was ended by the block that did it. What is no plan must not be followed.
  const bool real = cut.tile >= 0 && cut.tile < p.num_tiles && cut.pieces > 1 && cut.slot >= 0 &&
                    int64_t{cut.slot} + cut.pieces <= p.partials.slots;
  return real ? cut : CutTile{0, 0, 0};
}

__device__ void merge_unit(const ForwardParams& p, const MergePlace& place, int64_t unit, int64_t num_tiles) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int slice = static_cast<int>(unit % kSlices);
  const int64_t stride = p.tiles.tile_rows;
  const auto row = static_cast<int32_t>(visit::remainder(unit / kSlices, stride));
  CutTile cut = cut_tile_of(p, visit::quotient(unit / kSlices, stride), num_tiles);
  const visit::QueryTile tile = p.tiles.at(cut.tile);
  if (row >= tile.rows()) cut.pieces = 0;
  const int64_t first = cut.slot * stride + row;
  const float2* states = p.partials.state + first;
  softmax::RowState state;
  RowValues<1> o{.v = {}, .first = slice};
  const float* columns = p.partials.out + first * kFusedDim + o.column(0, lane);
  const bool has_sum = add_up_pieces<true>(
      cut.pieces, place, [&] { state = merged_state(states, stride, cut.pieces, lane); },
      [&](int64_t i) { return PieceWeight{weight_of(states[i * stride].x, state.max), true}; },
      [&](int64_t i) { return *reinterpret_cast<const float4*>(columns + i * stride * kFusedDim); }, o);
  if (!has_sum || cut.pieces == 0) return;
  const RowPlace at = place_in(p, tile, row);
  const float factor = end_row_state(p, at, state, slice == 0 && lane == 0);
  store_row_output(p, at, factor, p.shape.fused ? cos_sin_of(p, at.token) : nullptr, lane, o);
}

__global__ void __launch_bounds__(32 * kMostGroups, 2) merge_kernel(const __grid_constant__ ForwardParams p) {
  let_next_kernel_start();
  await_last_kernel();
  int64_t num_tiles = p.num_tiles;
  int64_t most_pieces = p.max_pieces;
  if (p.items != nullptr) {
    const PlanHeader header = *p.plan_header;
    num_tiles = header.cut_tiles;
    most_pieces = header.most_pieces;
  }
  const MergePlace place = MergePlace::of(most_pieces);
  const int64_t units = num_tiles * p.tiles.tile_rows * kSlices;
  const int64_t first = place.unit - place.unit % (blockDim.x / 32 / place.groups);
  for (int64_t i = 0; first + i < units; i += place.units_at_once) merge_unit(p, place, place.unit + i, num_tiles);
}

}  // namespace

const void* merge_kernel_of_forward() { return reinterpret_cast<const void*>(&merge_kernel); }

}  // namespace tilewise::cuda
