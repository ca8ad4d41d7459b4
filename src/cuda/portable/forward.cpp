// The table row of the portable forward kernel: what it takes, how it cuts, how it is launched.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "cuda/common/launch.h"
#include "cuda/kernels.h"
#include "cuda/portable/config.h"
#include "cuda/portable/instances.h"
#include "cuda/portable/merge_grid.h"
#include "cuda/portable/params.h"
#include "cuda/portable/plan.h"

namespace tilewise::cuda {
namespace {

/// With a plan the merge has as many blocks as run at the same time: by merge_kernel's launch bounds.
constexpr int64_t kMergeBlocksOfSm = 2;
/// From here on a kernel can be brought up before the one it waits for is done, if it was compiled to wait.
constexpr int32_t kEarlyCapability = 90;
#if defined(TILEWISE_CUDA_MAY_NOT_WAIT)
constexpr bool kWaits = false;
#else
constexpr bool kWaits = true;
#endif

// Pieces of a row whose bits may not depend on the batch, in keys: those of a prefill are not cut.
constexpr int64_t kInvariantPiece = 1024;
constexpr int64_t kInvariantPieces = 16;
/// Otherwise at most so many.
constexpr int64_t kMostPieces = 512;

using InstanceOf = const void* (*)();
using Instances = std::array<InstanceOf, kNumForwardConfigs>;

/// Records have one stage of tiles anyway: a row with one stage is the same as the one before it.
template <class T, int kDim, int kRow, bool kRaw>
constexpr InstanceOf instance_of() {
  if constexpr (kRaw && kForwardConfigs[kRow].stages == 1) {
    return nullptr;
  } else {
    return &forward_instance<T, kDim, kRow, kRaw>;
  }
}

template <class T, int kDim, bool kRaw>
constexpr Instances instances_of() {
  return []<size_t... kRow>(std::index_sequence<kRow...>) {
    return Instances{instance_of<T, kDim, static_cast<int>(kRow), kRaw>()...};
  }(std::make_index_sequence<kNumForwardConfigs>());
}

const Instances& instances_for(const ForwardShape& shape) {
  static constexpr Instances kBf16[] = {instances_of<__nv_bfloat16, 512, false>(),
                                        instances_of<__nv_bfloat16, 576, false>()};
  static constexpr Instances kFp16[] = {instances_of<__half, 512, false>(),
                                        instances_of<__half, 576, false>()};
  static constexpr Instances kRaw[] = {instances_of<__nv_bfloat16, 512, true>(),
                                       instances_of<__nv_bfloat16, 576, true>()};
  const size_t wide = shape.d_qk == 576 ? 1 : 0;
  if (decodes(shape)) return kRaw[wide];
  return shape.main.dtype == DType::kFP16 ? kFp16[wide] : kBf16[wide];
}

int64_t longest_row(const ForwardShape& shape) {
  return shape.dense ? shape.main.width * shape.main.page : shape.main.width + shape.extra.width;
}

/// The number of pieces that takes the least time: waves of blocks, each with the start and the end of a
/// piece, then the merge.
int64_t quickest_pieces(int64_t num_tiles, int64_t keys_tiles, const PieceCosts& costs, int64_t at_once) {
  int64_t best = 1;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t pieces = 1; pieces <= std::clamp<int64_t>(keys_tiles, 1, kMostPieces); ++pieces) {
    const int64_t longest = visit::ceil_div(keys_tiles, pieces);
    const int64_t cycles = costs.cycles(num_tiles * pieces, longest, at_once, pieces > 1);
    if (cycles >= least) continue;
    least = cycles;
    best = pieces;
  }
  return best;
}

void choose_pieces(const ForwardShape& shape, const ForwardConfig& config, int64_t at_once,
                   ForwardPlan* plan) {
  plan->min_piece = 1;
  plan->max_segments = 1;
  if (shape.epilogue == Epilogue::kPartials) {
    plan->max_segments = shape.num_splits;
    return;
  }
  const bool prefill = shape.op == "sparse_prefill_fwd" || shape.op == "fused_prefill";
  if (prefill || plan->num_tiles == 0) return;
  // The extra list begins a tile of its own.
  const int64_t tiles = visit::ceil_div(longest_row(shape), config.tile_keys) + (shape.extra.present ? 1 : 0);
  if (shape.batch_invariant) {
    plan->min_piece = kInvariantPiece / config.tile_keys;
    plan->max_segments = kInvariantPieces;
  } else {
    plan->max_segments = quickest_pieces(plan->num_tiles, tiles, piece_costs(config, shape), at_once);
  }
  plan->max_segments =
      std::min(plan->max_segments, std::max<int64_t>(visit::ceil_div(tiles, plan->min_piece), 1));
}

formats::RecordSpec spec_of(const CacheShape& cache, int64_t d) {
  if (!cache.present) return {};
  const auto columns = static_cast<int32_t>(d);
  if (cache.record == Record::kBf16 && cache.dtype == DType::kE4M3) {
    using namespace formats::grammar;
    return record(Record::kBf16, columns, planes(columns), segments(unscaled_e4m3(0, 0, columns)),
                  no_scales());
  }
  return formats::record_spec(cache.record, columns);
}

int32_t least_shared_bytes(const ForwardShape& shape) {
  int32_t least = std::numeric_limits<int32_t>::max();
  for (const ForwardConfig& config : kForwardConfigs) least = std::min(least, shared_bytes(config, shape));
  return least;
}

/// Rows of a cache, as far as an index can tell them apart.
int32_t slots_of(const CacheShape& cache) {
  return static_cast<int32_t>(
      std::min<int64_t>(cache.num_blocks * cache.page, std::numeric_limits<int32_t>::max()));
}

}  // namespace

ForwardParams forward_params(const ForwardProblem& problem, const ForwardConfig& config) {
  const ForwardShape& shape = problem.shape;
  ForwardParams params{};
  params.shape = shape;
  params.tensors = problem;
  params.tiles = query_tiles(shape, config.tile_rows);
  params.tile_keys = config.tile_keys;
  params.num_tiles = static_cast<int32_t>(params.tiles.count());
  params.heads = Divisor::of(params.tiles.heads);
  params.cast = CastGroups::of(shape.h_q, shape.n_groups);
  params.main_page = Divisor::of(shape.main.page);
  params.extra_page = Divisor::of(shape.extra.page);
  params.main_slots = slots_of(shape.main);
  params.extra_slots = slots_of(shape.extra);
  // Rows of a cache without a record are planes of a page of one.
  params.main_raw = raw_layout(spec_of(shape.main, shape.d_qk), shape.dense ? 1 : shape.main.page);
  params.extra_raw = raw_layout(spec_of(shape.extra, shape.d_qk), shape.extra.page);
  params.raw_row_bytes = decodes(shape) ? raw_row_bytes(shape) : 0;
  return params;
}

namespace {

class PortableForward final : public Kernel<Forward> {
 public:
  const std::string& name() const override {
    static const std::string name = "cuda_portable";
    return name;
  }

  std::optional<std::string> refusal(const ForwardShape& shape, const Device& device) const override {
    if (auto reason = device_refusal(device)) return reason;
    if (!choose_config(shape, device)) {
      return fmt::format("needs {} B of shared memory, the device has {} B", least_shared_bytes(shape),
                         device.cuda_shared_bytes);
    }
    return std::nullopt;
  }

  ForwardPlan plan(const ForwardShape& shape, const Device& device, Ledger& ledger) const override {
    ForwardPlan plan;
    plan.config = choose_config(shape, device).value();
    const ForwardConfig& config = kForwardConfigs[plan.config];
    plan.tile_rows = config.tile_rows;
    plan.tile_keys = config.tile_keys;
    plan.num_tiles = query_tiles(shape, plan.tile_rows).count();
    plan.early = kWaits && device.cuda_capability >= kEarlyCapability;
    const int64_t at_once = blocks_at_once(config, shape, device);
    if (shape.planned) {
      plan.items = plan.num_tiles + plan_extra_items(at_once);
      plan.merge_blocks = int64_t{device.cuda_sms} * kMergeBlocksOfSm;
      book_partials(shape, plan_slots(plan.num_tiles, at_once), &plan, ledger);
      return plan;
    }
    choose_pieces(shape, config, at_once, &plan);
    if (merges(shape, plan)) {
      plan.cut = ledger.book<CutTile>(plan.num_tiles);
      book_partials(shape, plan.num_tiles * plan.max_segments, &plan, ledger);
    }
    return plan;
  }

  void run(const ForwardProblem& problem, const ForwardPlan& plan, const RunPlace& place) const override {
    if (plan.num_tiles == 0) return;
    const DeviceGuard device(place.device.index);
    const ForwardShape& shape = problem.shape;
    const ForwardConfig& config = kForwardConfigs[plan.config];
    ForwardParams params = forward_params(problem, config);
    params.min_piece = plan.min_piece;
    params.max_pieces = plan.max_segments;
    if (merges(shape, plan)) {
      params.partials = {.cut = granted<CutTile>(place.workspace, plan.cut),
                         .out = granted<float>(place.workspace, plan.partials),
                         .state = granted<float2>(place.workspace, plan.scratch),
                         .slots = static_cast<int32_t>(plan.slots)};
    }
    if (shape.planned) {
      // The kernels only read it.
      const PlanParts parts = parts_of_plan(const_cast<int32_t*>(problem.plan), shape);
      params.items = parts.items;
      params.plan_header = parts.header;
      params.partials.cut = parts.cut;
    }
    const auto stream = static_cast<cudaStream_t>(place.stream.handle);
    launch_kernel({.op = shape.op.c_str(),
                   .name = name().c_str(),
                   .blocks = shape.planned ? plan.items : plan.num_tiles * plan.max_segments,
                   .threads = config.warps * 32,
                   .shared_bytes = shared_bytes(config, shape),
                   .stream = stream,
                   .early = plan.early},
                  instances_for(shape)[static_cast<size_t>(plan.config)](), &params);
    if (!merges(shape, plan)) return;
    const int64_t units = plan.num_tiles * plan.tile_rows * (shape.d_v / kSliceColumns);
    const MergeGrid grid =
        shape.planned ? MergeGrid{plan.merge_blocks, 32 * kMostGroups} : merge_grid(units, plan.max_segments);
    launch_kernel({.op = shape.op.c_str(),
                   .name = "cuda_portable merge",
                   .blocks = grid.blocks,
                   .threads = grid.threads,
                   .stream = stream,
                   .early = plan.early},
                  merge_kernel_of_forward(), &params);
  }

 private:
  static bool merges(const ForwardShape& shape, const ForwardPlan& plan) {
    return shape.planned || (shape.epilogue != Epilogue::kPartials && plan.max_segments > 1);
  }

  static void book_partials(const ForwardShape& shape, int64_t slots, ForwardPlan* plan, Ledger& ledger) {
    plan->slots = slots;
    plan->partials = ledger.book<float>(slots * plan->tile_rows * shape.d_v);
    plan->scratch = ledger.book<float2>(slots * plan->tile_rows);
  }
};

}  // namespace

KernelTable<Forward> forward_kernels() {
  static const PortableForward portable;
  static const Kernel<Forward>* const rows[] = {&portable};
  return rows;
}

}  // namespace tilewise::cuda
