// Plans over a table of toy kernels: choice, forcing, texts, workspaces.
#include "tilewise/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/kernel_table.h"
#include "ops/forward.h"
#include "ops/sparse_backward.h"
#include "tests/errors/calls.h"
#include "tests/errors/training_calls.h"

namespace tilewise {
namespace {

struct ToyShape {
  std::string op = "toy";
  int64_t n = 0;
  bool operator==(const ToyShape&) const = default;
};
std::string describe(const ToyShape& shape) { return "n " + std::to_string(shape.n); }

struct ToyPlan {
  size_t piece = 0;
  int threads = 0;
};
std::string describe(const ToyPlan& plan) { return "piece at " + std::to_string(plan.piece); }

struct ToyProblem {
  ToyShape shape;
  std::string* ran = nullptr;
};

struct Toy {
  using Shape = ToyShape;
  using Problem = ToyProblem;
  using KernelPlan = ToyPlan;
};

/// Takes at least `least` elements, on the CPU.
class ToyKernel final : public Kernel<Toy> {
 public:
  ToyKernel(std::string name, int64_t least) : name_(std::move(name)), least_(least) {}

  const std::string& name() const override { return name_; }
  std::optional<std::string> refusal(const ToyShape& shape, const Device& device) const override {
    if (device.id.type != DeviceType::kCpu) return "needs a CPU";
    if (shape.n < least_) return "needs n >= " + std::to_string(least_);
    return std::nullopt;
  }
  /// Has no use for more than one thread in `least` elements.
  ToyPlan plan(const ToyShape& shape, const Device& device, Ledger& ledger) const override {
    ledger.book<double>(1);
    return {ledger.book<float>(shape.n), std::min(device.threads, static_cast<int>(shape.n / least_))};
  }
  void run(const ToyProblem& problem, const ToyPlan& plan, const RunPlace& place) const override {
    std::memset(granted<float>(place.workspace, plan.piece), 0,
                static_cast<size_t>(problem.shape.n) * sizeof(float));
    *problem.ran = name_ + " with " + std::to_string(plan.threads);
  }

 private:
  std::string name_;
  int64_t least_;
};

const ToyKernel kWide("wide", 100);
const ToyKernel kNarrow("narrow", 10);
const Kernel<Toy>* const kRows[] = {&kWide, &kNarrow};
const KernelTable<Toy> kTable = kRows;

Device two_threads() {
  Device device;
  device.threads = 2;
  return device;
}

Plan toy_plan(int64_t n, const PlanOptions& options = {}, const Device& device = two_threads()) {
  return make_plan<Toy>(kTable, {"toy", n}, device, options);
}

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// TILEWISE_KERNEL for the length of a scope.
class Environment {
 public:
  explicit Environment(const char* kernel) {
    const char* before = std::getenv(kName);
    if (before != nullptr) before_ = before;
    setenv(kName, kernel, 1);
  }
  ~Environment() {
    if (before_) {
      setenv(kName, before_->c_str(), 1);
    } else {
      unsetenv(kName);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* kName = "TILEWISE_KERNEL";
  std::optional<std::string> before_;
};

TEST(Plan, FirstKernelThatSupportsTheCall) {
  const Environment no_force("");
  EXPECT_EQ(toy_plan(100).kernel(), "wide");
  EXPECT_EQ(toy_plan(99).kernel(), "narrow");
  EXPECT_EQ(toy_plan(99).op(), "toy");
  EXPECT_EQ(refusal([] { toy_plan(9); }),
            "toy: kernel must be one that supports this call, got no kernel that does: wide: needs n >= 100; "
            "narrow: "
            "needs n >= 10");
  EXPECT_EQ(refusal([] { make_plan<Toy>({}, {"toy", 9}, two_threads(), {}); }),
            "toy: kernel must be one that supports this call, got no kernel that does");
}

TEST(Plan, ForcedByOptions) {
  EXPECT_EQ(toy_plan(200, {.kernel = "narrow"}).kernel(), "narrow");
  EXPECT_EQ(refusal([] { toy_plan(50, {.kernel = "wide"}); }),
            "toy: kernel must be one that supports this call, got wide: needs n >= 100");
  EXPECT_EQ(refusal([] { toy_plan(50, {.kernel = "other"}); }),
            "toy: kernel must be wide or narrow, got other");
  EXPECT_EQ(refusal([] { make_plan<Toy>({}, {"toy", 9}, two_threads(), {.kernel = "wide"}); }),
            "toy: kernel must be left out, as there is none yet, got wide");
}

TEST(Plan, ForcedByTheEnvironment) {
  const Environment force("narrow");
  EXPECT_EQ(toy_plan(200).kernel(), "narrow");
  EXPECT_EQ(toy_plan(200, {.kernel = "wide"}).kernel(), "wide") << "options come first";
  const Environment unknown("nonsense");
  EXPECT_EQ(refusal([] { toy_plan(200); }), "toy: kernel must be wide or narrow, got nonsense");
}

TEST(Plan, Describe) {
  EXPECT_EQ(toy_plan(100, {.kernel = "wide"}).describe(),
            "toy: kernel wide, 1 thread, 512 B workspace; n 100; piece at 64")
      << "the threads that are used";
  EXPECT_EQ(toy_plan(20, {.kernel = "narrow"}).describe(),
            "toy: kernel narrow, 2 threads, 192 B workspace; n 20; piece at 64");
  EXPECT_EQ(toy_plan(16, {.kernel = "narrow", .threads = 1}).describe(),
            "toy: kernel narrow, 1 thread, 128 B workspace; n 16; piece at 64");
}

TEST(Plan, Threads) {
  std::string ran;
  const auto ran_with = [&](const Plan& plan) {
    const OwnedWorkspace workspace(plan.workspace_bytes());
    run_plan<Toy>(plan, {{"toy", 100}, &ran}, workspace, {});
    return ran;
  };
  EXPECT_EQ(ran_with(toy_plan(100, {.kernel = "wide"})), "wide with 1");
  EXPECT_EQ(ran_with(toy_plan(100, {.kernel = "narrow"})), "narrow with 2");
  EXPECT_EQ(ran_with(toy_plan(100, {.kernel = "narrow", .threads = 7})), "narrow with 7");
  EXPECT_EQ(ran_with(toy_plan(100, {.kernel = "narrow", .threads = 70})), "narrow with 10");
  EXPECT_EQ(refusal([] { toy_plan(100, {.kernel = "", .threads = -1}); }),
            "toy: threads must be at least 0, got -1");
  Device none;
  none.threads = 0;
  EXPECT_EQ(refusal([&] { toy_plan(100, {}, none); }),
            "toy: device must be of at least 1 thread, got 0 threads");
  EXPECT_EQ(ran_with(toy_plan(100, {.kernel = "narrow", .threads = 4}, none)), "narrow with 4");
}

TEST(Plan, Workspaces) {
  const Plan plan = toy_plan(100, {.kernel = "wide"});
  ASSERT_EQ(plan.workspace_bytes(), 512u);
  std::string ran;
  alignas(64) char room[1024];
  const auto run_in = [&](Workspace workspace) {
    return refusal([&] { run_plan<Toy>(plan, {{"toy", 100}, &ran}, workspace, {}); });
  };
  EXPECT_EQ(run_in({room, 511}), "toy: workspace must be of at least 512 bytes, got 511 bytes");
  EXPECT_EQ(run_in({}), "toy: workspace must be of at least 512 bytes, got 0 bytes");
  EXPECT_EQ(run_in({nullptr, 512}), "toy: workspace must be memory, got a null pointer");
  EXPECT_EQ(
      run_in({room + 8, 512}),
      "toy: workspace must be memory that starts at a multiple of 64 bytes, got an address 8 bytes past one");
  EXPECT_EQ(
      run_in({room + 1, 512}),
      "toy: workspace must be memory that starts at a multiple of 64 bytes, got an address 1 byte past one");
  EXPECT_EQ(ran, "") << "nothing ran";
  EXPECT_EQ(run_in({room, 512}), "nothing was thrown");
  EXPECT_EQ(ran, "wide with 1");
}

TEST(Plan, OwnedWorkspaceIsAlignedAndEmptyWhenNothingIsNeeded) {
  for (size_t bytes : {size_t{1}, size_t{64}, size_t{1000}}) {
    const OwnedWorkspace owned(bytes);
    const Workspace workspace = owned;
    EXPECT_EQ(workspace.bytes, bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace.data) % 64, 0u);
    std::memset(workspace.data, 1, bytes);
  }
  const OwnedWorkspace none(0);
  EXPECT_EQ(static_cast<Workspace>(none).data, nullptr);
  EXPECT_THROW(OwnedWorkspace{SIZE_MAX}, std::bad_alloc);
}

TEST(Plan, OfOtherShapesIsRefused) {
  const Plan plan = toy_plan(100, {.kernel = "wide"});
  std::string ran;
  const OwnedWorkspace workspace(plan.workspace_bytes());
  const std::string made = "[" + plan.describe() + "]";
  EXPECT_EQ(refusal([&] { run_plan<Toy>(plan, {{"toy", 101}, &ran}, workspace, {}); }),
            "toy: plan must be one made for the same shapes, types and options, got " + made);
  EXPECT_EQ(refusal([&] { run_plan<Toy>(plan, {{"other", 100}, &ran}, workspace, {}); }),
            "other: plan must be one made for the same shapes, types and options, got " + made);
  EXPECT_EQ(ran, "");
}

TEST(Plan, Explain) {
  const auto verdicts = explain_table<Toy>(kTable, {"toy", 50}, two_threads());
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].kernel, "wide");
  EXPECT_EQ(verdicts[0].refusal, "needs n >= 100");
  EXPECT_EQ(verdicts[1].kernel, "narrow");
  EXPECT_EQ(verdicts[1].refusal, "");
}

TEST(Plan, OfAnOperatorIsRefusedByAnother) {
  const auto decode = errors::dense_decode_call();
  const auto prefill = errors::sparse_prefill_call();
  const auto combine = errors::combine_partials_call();
  const Plan plan_of_decode = plan(decode.args, Device::cpu());
  const OwnedWorkspace workspace(plan_of_decode.workspace_bytes());
  const std::string got = ": plan must be one made for the same shapes, types and options, got [" +
                          plan_of_decode.describe() + "]";
  EXPECT_EQ(refusal([&] { run(plan_of_decode, prefill.args, workspace); }), "sparse_prefill_fwd" + got);
  EXPECT_EQ(refusal([&] { run(plan_of_decode, combine.args, workspace); }), "combine_partials" + got);
  EXPECT_TRUE(prefill.memory.outputs_untouched());
  EXPECT_TRUE(combine.memory.outputs_untouched());
}

TEST(Plan, OfOtherOptionsIsRefused) {
  const auto first = errors::dense_decode_call();
  auto second = errors::dense_decode_call();
  second.args.softmax_scale = 0.5f;
  const Plan made = plan(first.args, Device::cpu());
  const OwnedWorkspace workspace(made.workspace_bytes());
  EXPECT_EQ(refusal([&] { run(made, second.args, workspace); }),
            "dense_decode: plan must be one made for the same shapes, types and options, got [" +
                made.describe() + "]");
  EXPECT_TRUE(second.memory.outputs_untouched());
}

TEST(Plan, ForcedKernelsThatAreNotThere) {
  const auto call = errors::sparse_decode_call();
  std::string known;
  for (const KernelVerdict& verdict : explain(call.args, Device::cpu())) known += verdict.kernel + "|";
  EXPECT_NE(known, "");
  const std::string text = refusal([&] { plan(call.args, Device::cpu(), {.kernel = "nonsense"}); });
  EXPECT_EQ(text.rfind("sparse_decode: kernel must be ", 0), 0u) << text;
  EXPECT_NE(text.find(", got nonsense"), std::string::npos) << text;
  EXPECT_NE(text.find(known.substr(0, known.find('|'))), std::string::npos) << text;
}

TEST(Plan, DeviceMadeByHand) {
  const auto call = errors::dense_decode_call();
  Device gpu;
  gpu.id = {DeviceType::kCuda, 0};
  EXPECT_EQ(refusal([&] { plan(call.args, gpu); }), "dense_decode: q must be on cuda:0, got cpu");
  Device other;
  other.cpu_features = kCpuBaseline;
  other.threads = 3;
  const Plan made = plan(call.args, other);
  EXPECT_EQ(made.state().threads, 3);
  EXPECT_EQ(made.state().device, other);
}

TEST(Plan, TensorsOnAGpuFindNoKernelYet) {
  auto call = errors::combine_partials_call();
  const DeviceId gpu{DeviceType::kCuda, 0};
  for (const auto& argument : call.arguments) {
    TensorView& view = call.args.*argument.view;
    view = TensorView(view.data(), view.dtype(), view.shape(), view.strides(), gpu);
  }
  Device device;
  device.id = gpu;
  const std::string text = refusal([&] { plan(call.args, device); });
  EXPECT_EQ(text.rfind(
                "combine_partials: kernel must be one that supports this call, got no kernel that does: ", 0),
            0u)
      << text;
  EXPECT_EQ(refusal([&] { combine_partials(call.args); }),
            "combine_partials: out_partials must be on cpu, got cuda:0");
}

TEST(Describe, Problems) {
  const auto text = [](const auto& call) {
    const Device device = Device::cpu();
    const std::string whole = plan(call.args, device).describe();
    const size_t from = whole.find("; ") + 2;
    return whole.substr(from, whole.find("; ", from) - from);
  };
  EXPECT_EQ(text(errors::dense_decode_call()),
            "b 2, s_q 3, h_q 4, h_kv 2, d 576/512, q bfloat16, keys bfloat16 3x5 max_blocks 2 with lengths, "
            "scale 1, "
            "attn_sink, out bfloat16");
  EXPECT_EQ(text(errors::sparse_decode_call()),
            "b 2, s_q 3, h_q 4, h_kv 1, d 512/512, q bfloat16, keys v41_fp8 3x4 topk 5 with lengths, extra "
            "keys v41_fp4 "
            "3x4 topk 7 with lengths, scale 1, attn_sink, out bfloat16");
  EXPECT_EQ(
      text(errors::sparse_prefill_call()),
      "b 1, s_q 3, h_q 4, h_kv 1, d 576/512, q bfloat16, keys bfloat16 6x1 topk 5 with lengths, scale 1, "
      "sink_bias float32, indexer_topk 2, batch_invariant, out bfloat16");
  EXPECT_EQ(
      text(errors::fused_prefill_call()),
      "b 1, s_q 3, h_q 4, h_kv 1, d 512/512, q bfloat16, keys bfloat16 6x1 topk 5 with lengths, scale 1, "
      "attn_sink, rope of 9 positions, q norm with eps 1e-06, batch_invariant, out float8_e4m3fn in 2 "
      "groups");
  EXPECT_EQ(
      text(errors::fused_decode_partials_call()),
      "b 1, s_q 3, h_q 4, h_kv 1, d 512/512, q bfloat16, keys v4_fp8 3x4 topk 5 with lengths, extra keys "
      "v41_main_fp4 3x4 topk 7 with lengths, scale 1, rope of 9 positions, q norm with eps 1e-06, "
      "batch_invariant, 2 partials");
  auto invariant = errors::sparse_decode_call();
  invariant.args.batch_invariant = true;
  EXPECT_NE(text(invariant).find(", scale 1, attn_sink, batch_invariant, out bfloat16"), std::string::npos)
      << text(invariant);
  auto windowed = errors::dense_decode_call();
  windowed.args.causal = true;
  windowed.args.window = {7, 0};
  EXPECT_NE(text(windowed).find(", causal, window (7, 0), attn_sink"), std::string::npos) << text(windowed);
  EXPECT_EQ(
      text(errors::combine_partials_fused_call()),
      "2 partials bfloat16, s_q 3, h_q 4, d_v 512, lse base e, attn_sink, out float8_e4m3fn in 2 groups");
  EXPECT_EQ(text(errors::sparse_prefill_bwd_call()),
            "s_q 3, h_q 4, d 576/512, keys 6, topk 5 with lengths, scale 1, sink_bias float16, kl_target, "
            "deterministic");
  EXPECT_EQ(text(errors::append_kv_call()), "5 rows of 576, v32_nvfp4 3x4, slots int64");
}

TEST(Describe, SparseBackwardPlans) {
  const SparseBackwardPlan plan{.tile_rows = 16, .tile_keys = 256, .scratch_bytes = 4096};
  EXPECT_EQ(describe(plan), "tiles of 16 heads x 256 keys, 4096 B scratch a thread");
}

TEST(Describe, ForwardPlans) {
  ForwardPlan plan;
  plan.tile_rows = 16;
  plan.tile_keys = 256;
  plan.num_tiles = 3;
  plan.scratch_bytes = 4096;
  EXPECT_EQ(describe(plan), "3 tiles of 16 rows x 256 keys, 4096 B scratch a thread");
  plan.wave_tiles = 2;
  plan.max_segments = 5;
  EXPECT_EQ(
      describe(plan),
      "3 tiles of 16 rows x 256 keys, up to 5 segments a row, 2 tiles at a time, 4096 B scratch a thread");
  // As GPUs cut, where memory of threads has no meaning.
  plan.wave_tiles = 0;
  plan.scratch_bytes = 0;
  EXPECT_EQ(describe(plan), "3 tiles of 16 rows x 256 keys");
  plan.min_piece = 4;
  EXPECT_EQ(describe(plan), "3 tiles of 16 rows x 256 keys, up to 5 pieces a row of 1024 keys at least");
}

}  // namespace
}  // namespace tilewise
