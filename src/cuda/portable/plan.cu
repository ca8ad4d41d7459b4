// Fills a caller's plan (ops/decode_plan.h): one block of 32 warps.
//
//   1 a thread a query tile   how many KV tiles it visits; the largest number
//   2 a warp a candidate      what it costs to cut the longest query tile into so many pieces, and the others
//                             into pieces of the same length: waves of blocks, then the merge
//   3 a thread a query tile   its pieces, their items and slots, by a running sum over the query tiles
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
constexpr unsigned kAllLanes = 0xFFFFFFFFu;
// Candidates: 1 to 64 pieces of the longest query tile, then every eighth number.
constexpr int kCandidates = 128;
constexpr int kEveryCandidate = 64;
constexpr int kLaterStep = 8;

struct PlanParams {
  ForwardParams forward;
  PieceCosts costs;
  int64_t at_once;
  int32_t num_items;
  int4* items;
  int2* tiles;
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

// Step 1. Counts go into the plan itself, where they are replaced at the end.
__device__ uint32_t count_key_tiles(const PlanParams& p) {
  uint32_t most = 0;
  for (int32_t i = threadIdx.x; i < p.forward.num_tiles; i += kThreads) {
    const KeyTiles tiles = KeyTiles::of(p.forward, p.forward.tiles.at(i),
                                        static_cast<int32_t>(p.forward.tile_keys));
    p.tiles[i] = {0, tiles.count};
    most = max(most, static_cast<uint32_t>(tiles.count));
  }
  most = largest_of_block(most);
  __syncthreads();
  return max(most, 1u);
}

// Step 2, a warp.
__device__ int64_t cost_of(const PlanParams& p, uint32_t length, int lane) {
  uint32_t items = 0;
  uint32_t most = 0;
  for (int32_t i = lane; i < p.forward.num_tiles; i += 32) {
    const uint32_t pieces = EvenCut::of(p.tiles[i].y, length).pieces;
    items += pieces;
    most = max(most, pieces);
  }
  items = __reduce_add_sync(kAllLanes, items);
  most = __reduce_max_sync(kAllLanes, most);
  if (items > p.num_items) return LLONG_MAX;
  const int64_t waves = (items + p.at_once - 1) / p.at_once;
  const int64_t merge = most == 1 ? 0 : p.costs.merge + most * p.costs.merged_piece;
  return waves * (length * p.costs.tile + p.costs.start_and_end) + merge;
}

__device__ uint32_t cheapest_length(const PlanParams& p, uint32_t longest) {
  __shared__ int64_t costs[kCandidates];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kCandidates; i += kWarps) {
    const uint32_t pieces = pieces_of_candidate(i);
    const int64_t cost =
        pieces > longest ? LLONG_MAX : cost_of(p, (longest + pieces - 1) / pieces, lane);
    if (lane == 0) costs[i] = cost;
  }
  __syncthreads();
  int best = 0;
  for (int i = 1; i < kCandidates; ++i) best = costs[i] < costs[best] ? i : best;
  const uint32_t pieces = pieces_of_candidate(best);
  return (longest + pieces - 1) / pieces;
}

struct ItemsAndSlots {
  uint32_t items;
  uint32_t slots;
};

// What comes before this thread's, and (in `all`) what all threads have together.
__device__ ItemsAndSlots sum_before(ItemsAndSlots own, ItemsAndSlots& all) {
  __shared__ ItemsAndSlots of_warps[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  ItemsAndSlots sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t items = __shfl_up_sync(kAllLanes, sum.items, step);
    const uint32_t slots = __shfl_up_sync(kAllLanes, sum.slots, step);
    if (lane >= step) sum = {sum.items + items, sum.slots + slots};
  }
  __syncthreads();  // the last call's sums have been read
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  ItemsAndSlots before{sum.items - own.items, sum.slots - own.slots};
  all = {0, 0};
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before = {before.items + of_warps[i].items, before.slots + of_warps[i].slots};
    all = {all.items + of_warps[i].items, all.slots + of_warps[i].slots};
  }
  return before;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ PlanParams p) {
  const uint32_t length = cheapest_length(p, count_key_tiles(p));
  ItemsAndSlots done{0, 0};
  for (int32_t base = 0; base < p.forward.num_tiles; base += kThreads) {
    const int32_t i = base + static_cast<int32_t>(threadIdx.x);
    const bool exists = i < p.forward.num_tiles;
    const EvenCut cut = exists ? EvenCut::of(p.tiles[i].y, length) : EvenCut{0, 0};
    ItemsAndSlots all{};
    const ItemsAndSlots before = sum_before({cut.pieces, cut.pieces > 1 ? cut.pieces : 0}, all);
    const uint32_t item = done.items + before.items;
    const uint32_t slot = done.slots + before.slots;
    for (uint32_t k = 0; k < cut.pieces; ++k) {
      const bool last = k + 1 == cut.pieces;
      p.items[item + k] = {i, static_cast<int>(k * cut.step),
                           last ? INT_MAX : static_cast<int>((k + 1) * cut.step),
                           cut.pieces > 1 ? static_cast<int>(slot + k) : -1};
    }
    if (exists) p.tiles[i] = {static_cast<int>(slot), static_cast<int>(cut.pieces)};
    done = {done.items + all.items, done.slots + all.slots};
  }
  for (int32_t i = static_cast<int32_t>(done.items + threadIdx.x); i < p.num_items; i += kThreads) {
    p.items[i] = {-1, 0, 0, -1};
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
  params.num_items =
      static_cast<int32_t>(params.forward.num_tiles + plan_extra_items(params.at_once));
  params.items = reinterpret_cast<int4*>(plan);
  params.tiles = reinterpret_cast<int2*>(plan + 4 * max_plan_items(shape));
  if (params.forward.num_tiles == 0) return;
  launch({.op = shape.op.c_str(),
          .name = "cuda_portable plan",
          .blocks = 1,
          .threads = kThreads,
          .stream = static_cast<cudaStream_t>(stream.handle)},
         &plan_kernel, params);
}

}  // namespace tilewise::cuda
