// Merges the pieces of query tiles and ends their rows. The grid has a unit for each row and 128 columns, or,
// with a caller's plan, goes over the query tiles that the plan cuts.
#include "cuda/portable/merge.cuh"

#include "cuda/portable/instances.h"
#include "cuda/portable/params.h"
#include "ops/decode_plan.h"
#include "softmax/state.h"

namespace tilewise::cuda {
namespace {

constexpr int kSlices = kFusedDim / kSliceColumns;

// Pieces of a row merged so far: the state, and four columns of the output of each lane.
struct Merged {
  softmax::RowState state;
  float4 sum{};

  // The factor for the sums once the maximum is the larger of the two.
  __device__ float raise(float max) {
    max = max_or_nan(state.max, max);
    const float factor = weight_of(state.max, max);
    state = {max, state.sum * factor};
    return factor;
  }
  __device__ void scale(float factor) {
    sum = {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor};
  }
  __device__ void add(const float4& v, float weight) {
    sum.x = fmaf(v.x, weight, sum.x);
    sum.y = fmaf(v.y, weight, sum.y);
    sum.z = fmaf(v.z, weight, sum.z);
    sum.w = fmaf(v.w, weight, sum.w);
  }
};

// Pieces [begin, end), whose states and columns are `stride` rows apart. States and columns are read at once.
__device__ Merged merge_run(const float2* states, const float* columns, int64_t stride, int begin, int end,
                            int lane) {
  static_assert(kPiecesOfWarp == 8);
  Merged run;
  for (int base = begin; base < end; base += kPiecesOfWarp) {
    float2 part{-softmax::kInfinity, 0.0f};
    if (base + lane % kPiecesOfWarp < end) part = states[(base + lane % kPiecesOfWarp) * stride];
    float4 v[kPiecesOfWarp];
    const float* from = columns + base * stride * kFusedDim;
#pragma unroll
    for (int i = 0; i < kPiecesOfWarp; ++i, from += stride * kFusedDim) {
      v[i] = base + i < end ? *reinterpret_cast<const float4*>(from) : float4{};
    }
    // The lanes repeat every eight, so that all of them get the sums.
    float most = part.x;
    for (int step = 1; step < kPiecesOfWarp; step *= 2) {
      most = max_or_nan(most, __shfl_xor_sync(kAllLanes, most, step));
    }
    run.scale(run.raise(most));
    const float own = weight_of(part.x, run.state.max);
    float sum = part.y * own;
    for (int step = 1; step < kPiecesOfWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    run.state.sum += sum;
#pragma unroll
    for (int i = 0; i < kPiecesOfWarp; ++i) run.add(v[i], __shfl_sync(kAllLanes, own, i));
  }
  return run;
}

// The runs of a unit's warps in order; the first warp has the result.
__device__ void merge_groups_of_unit(const MergePlace& place, int groups, int lane, Merged& run) {
  __shared__ float4 sums[kMostGroups][32];
  __shared__ float2 states[kMostGroups];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  __syncthreads();  // the last unit's runs have been read
  sums[warp][lane] = run.sum;
  if (lane == 0) states[warp] = {run.state.max, run.state.sum};
  __syncthreads();
  if (place.group > 0) return;
  float most = run.state.max;
  for (int i = 1; i < groups; ++i) most = max_or_nan(most, states[warp + i].x);
  run.scale(run.raise(most));
  for (int i = 1; i < groups; ++i) {
    const float weight = weight_of(states[warp + i].x, most);
    run.state.sum = fmaf(states[warp + i].y, weight, run.state.sum);
    run.add(sums[warp + i][lane], weight);
  }
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
  const auto row = static_cast<int32_t>(visit::remainder32(unit / kSlices, stride));
  CutTile cut = cut_tile_of(p, visit::quotient32(unit / kSlices, stride), num_tiles);
  const visit::QueryTile tile = p.tiles.at(cut.tile);
  if (row >= tile.rows()) cut.pieces = 0;
  const int64_t first = cut.slot * stride + row;
  RowValues<1, 4> o{.v = {}, .first = slice};
  const int groups = min(merge_groups(cut.pieces), place.groups);
  const int begin = cut.pieces * place.group / groups;
  const int end = place.group < groups ? cut.pieces * (place.group + 1) / groups : begin;
  Merged run = merge_run(p.partials.state + first, p.partials.out + first * kFusedDim + o.column(0, lane),
                         stride, begin, end, lane);
  if (place.groups > 1) merge_groups_of_unit(place, groups, lane, run);
  if (place.group > 0 || cut.pieces == 0) return;
  o.v[0][0] = run.sum.x;
  o.v[0][1] = run.sum.y;
  o.v[0][2] = run.sum.z;
  o.v[0][3] = run.sum.w;
  const RowPlace at = place_in(p, tile, row);
  const float factor = end_row_state(p, at, run.state, slice == 0 && lane == 0);
  store_row_output(p, at, factor, p.shape.fused ? cos_sin_at(p, position_of(p, at.token)) : nullptr, lane, o);
}

__global__ void __launch_bounds__(32 * kMostGroups, 2) merge_kernel(const __grid_constant__ ForwardParams p) {
  let_next_kernel_start();
  await_last_kernel();
  int64_t num_tiles = p.num_tiles;
  int64_t most_pieces = p.max_pieces;
  if (p.items != nullptr) {
    const PlanHeader header = *p.plan_header;
    if (!is_plan_for(header, p.num_tiles, p.tiles.tile_rows)) return;
    num_tiles = visit::smaller(header.cut_tiles, kMostExtraItems);
    most_pieces = header.most_pieces;
  }
  const MergePlace place = MergePlace::of(most_pieces);
  const int64_t units = num_tiles * p.tiles.tile_rows * kSlices;
  const int64_t first = place.unit - place.unit % (blockDim.x / 32 / place.groups);
  for (int64_t i = 0; first + i < units; i += place.units_at_once)
    merge_unit(p, place, place.unit + i, num_tiles);
}

}  // namespace

const void* merge_kernel_of_forward() { return reinterpret_cast<const void*>(&merge_kernel); }

}  // namespace tilewise::cuda
