// Fills a caller's plan (ops/decode_plan.h): one block of 32 warps.
//
//   1 a thread a query tile   how many KV tiles it visits; the largest number
//   2 a warp a candidate      what it costs to cut the longest query tile into so many pieces, and the others
//                             into pieces of the same length: waves of blocks, then the merge
//   3 a thread a query tile   its pieces, their items and slots, by running sums over the query tiles
#include <climits>

#include "cuda/common/launch.h"
#include "cuda/kernels.h"
#include "cuda/portable/config.h"
#include "cuda/portable/key_tiles.cuh"
#include "cuda/portable/plan.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
// Candidates: 1 to 64 pieces of the longest query tile, then every eighth number.
constexpr int kCandidates = 128;
constexpr int kEveryCandidate = 64;
constexpr int kLaterStep = 8;

struct PlanParams {
  ForwardParams forward;
  PieceCosts costs;
  int64_t at_once;
  int32_t num_items;
  PlanParts plan;
};

__device__ int pieces_of_candidate(int i) {
  return i < kEveryCandidate ? i + 1 : kEveryCandidate + (i + 1 - kEveryCandidate) * kLaterStep;
}

// The pieces of at most `length` KV tiles that `count` of them are cut into; all are of the same length but
// the last.
struct EvenCut {
  uint32_t pieces;
  uint32_t step;

  __device__ static EvenCut of(uint32_t count, uint32_t length) {
    if (count <= length) return {1, count};
    const uint32_t wanted = (count + length - 1) / length;
    const uint32_t step = (count + wanted - 1) / wanted;
    return {(count + step - 1) / step, step};
  }
};

__device__ uint32_t largest_of_block(uint32_t value) {
  __shared__ uint32_t of_warps[kWarps];
  value = __reduce_max_sync(kAllLanes, value);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_max_sync(kAllLanes, of_warps[threadIdx.x % 32]);
}

__device__ uint32_t key_tiles_of(const PlanParams& p, int32_t tile) {
  return KeyTiles::of(p.forward, p.forward.tiles.at(tile), static_cast<int32_t>(p.forward.tile_keys)).count;
}

// Step 1. For step 2 the numbers are left where the items go.
__device__ uint32_t count_key_tiles(const PlanParams& p) {
  uint32_t most = 0;
  for (int32_t i = threadIdx.x; i < p.forward.num_tiles; i += kThreads) {
    const uint32_t count = key_tiles_of(p, i);
    p.plan.items[i].x = static_cast<int>(count);
    most = max(most, count);
  }
  most = largest_of_block(most);
  __syncthreads();
  return max(most, 1u);
}

// Step 2, a warp.
__device__ int64_t cost_of(const PlanParams& p, uint32_t length, int lane) {
  uint32_t items = 0;
  for (int32_t i = lane; i < p.forward.num_tiles; i += 32) {
    items += EvenCut::of(p.plan.items[i].x, length).pieces;
  }
  items = __reduce_add_sync(kAllLanes, items);
  if (items > p.num_items) return LLONG_MAX;
  return p.costs.cycles(items, length, p.at_once, items > p.forward.num_tiles);
}

__device__ uint32_t cheapest_length(const PlanParams& p, uint32_t longest) {
  __shared__ int64_t costs[kCandidates];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kCandidates; i += kWarps) {
    const uint32_t pieces = pieces_of_candidate(i);
    const int64_t cost = pieces > longest ? LLONG_MAX : cost_of(p, (longest + pieces - 1) / pieces, lane);
    if (lane == 0) costs[i] = cost;
  }
  __syncthreads();
  int best = 0;
  for (int i = 1; i < kCandidates; ++i) best = costs[i] < costs[best] ? i : best;
  const uint32_t pieces = pieces_of_candidate(best);
  return (longest + pieces - 1) / pieces;
}

// Of query tiles: their items, the slots of those that are cut, and how many are.
struct Sums {
  uint32_t items = 0;
  uint32_t slots = 0;
  uint32_t cut = 0;

  __device__ Sums operator+(const Sums& b) const { return {items + b.items, slots + b.slots, cut + b.cut}; }
};

// The sum over the threads before this one, and (in `all`) over all threads.
__device__ Sums sum_before(const Sums& own, Sums& all) {
  __shared__ Sums of_warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Sums sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const Sums other{__shfl_up_sync(kAllLanes, sum.items, step), __shfl_up_sync(kAllLanes, sum.slots, step),
                     __shfl_up_sync(kAllLanes, sum.cut, step)};
    if (lane >= step) sum = sum + other;
  }
  __syncthreads();  // the last call's sums have been read
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  Sums before{sum.items - own.items, sum.slots - own.slots, sum.cut - own.cut};
  all = {};
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before = before + of_warps[i];
    all = all + of_warps[i];
  }
  return before;
}

// Step 3 for one query tile.
__device__ void write_tile(const PlanParts& plan, int32_t tile, const EvenCut& cut, const Sums& before) {
  const bool is_cut = cut.pieces > 1;
  for (uint32_t k = 0; k < cut.pieces; ++k) {
    const bool last = k + 1 == cut.pieces;
    plan.items[before.items + k] = {tile, static_cast<int>(k * cut.step),
                                    last ? INT_MAX : static_cast<int>((k + 1) * cut.step),
                                    is_cut ? static_cast<int>(before.slots + k) : -1};
  }
  if (is_cut) {
    plan.cut[before.cut] = {tile, static_cast<int32_t>(before.slots), static_cast<int32_t>(cut.pieces)};
  }
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PlanParams p) {
  const uint32_t length = cheapest_length(p, count_key_tiles(p));
  Sums done;
  uint32_t most = 0;
  for (int32_t base = 0; base < p.forward.num_tiles; base += kThreads) {
    const int32_t tile = base + static_cast<int32_t>(threadIdx.x);
    const EvenCut cut =
        tile < p.forward.num_tiles ? EvenCut::of(key_tiles_of(p, tile), length) : EvenCut{0, 0};
    Sums all;
    const Sums before =
        sum_before({cut.pieces, cut.pieces > 1 ? cut.pieces : 0, cut.pieces > 1 ? 1u : 0u}, all);
    write_tile(p.plan, tile, cut, done + before);
    done = done + all;
    most = max(most, cut.pieces);
  }
  most = largest_of_block(most);
  if (threadIdx.x == 0) {
    *p.plan.header = {static_cast<int32_t>(done.cut), static_cast<int32_t>(most), p.forward.num_tiles,
                      static_cast<int32_t>(p.forward.tiles.tile_rows)};
  }
  for (int32_t i = static_cast<int32_t>(done.items + threadIdx.x); i < p.num_items; i += kThreads) {
    p.plan.items[i] = {-1, 0, 0, -1};
  }
}

}  // namespace

void make_decode_plan(const ForwardProblem& problem, const Device& device, int32_t* plan, Stream stream) {
  const DeviceGuard guard(device.id.index);
  const ForwardShape& shape = problem.shape;
  const auto row = choose_config(shape, device);
  if (const auto reason = device_refusal(device); reason || !row) {
    throw CudaError(shape.op + ": no kernel of this device takes a plan");
  }
  const ForwardConfig& config = kForwardConfigs[*row];
  PlanParams params{};
  params.forward = forward_params(problem, config);
  params.costs = piece_costs(config, shape);
  params.at_once = blocks_at_once(config, shape, device);
  params.num_items = static_cast<int32_t>(params.forward.num_tiles + plan_extra_items(params.at_once));
  params.plan = parts_of_plan(plan, shape);
  if (params.forward.num_tiles == 0) return;
  launch({.op = shape.op.c_str(),
          .name = "cuda_portable plan",
          .blocks = 1,
          .threads = kThreads,
          .stream = static_cast<cudaStream_t>(stream.handle)},
         &plan_kernel, params);
}

}  // namespace tilewise::cuda
