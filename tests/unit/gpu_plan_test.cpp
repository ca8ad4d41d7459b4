// Plans for GPUs, made by hand where there is none: tiles, pieces and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#if defined(TILEWISE_HAS_CUDA)

#include <string>
#include <variant>

#include "cases/data.h"
#include "cases/gpu.h"
#include "cases/judge.h"
#include "cuda/portable/config.h"
#include "tests/support/tile_shapes.h"

namespace tilewise::testing {
namespace {

using ::testing::HasSubstr;

Device gpu(int32_t capability, int32_t sms, int32_t shared_bytes) {
  Device device;
  device.id = {DeviceType::kCuda, 0};
  device.cpu_features = 0;
  device.cuda_capability = capability;
  device.cuda_sms = sms;
  device.cuda_shared_bytes = shared_bytes;
  return device;
}

Device h200() { return gpu(90, 132, kLargeShared); }

std::string refusal(const cases::Case& c, const Device& device) {
  try {
    cases::plan_case(cases::make(c).args(), device);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string refusal_of_gpu(const cases::Case& c, const Device& device) {
  return cases::explain_case(cases::make(c).args(), device)[0].refusal;
}

// b 2 of a small dense call: 4800 keys a row.
cases::Case dense_case(int64_t heads, bool batch_invariant = false) {
  cases::Case c = small_dense_cases()[0];
  c.s_q = 1;
  c.h_q = heads;
  c.main.width = 4800;
  c.batch_invariant = batch_invariant;
  return c;
}

class GpuPlans : public OfOperator {};

TEST_P(GpuPlans, TilesFitTheDevice) {
  for (const TileShape& shape : kTileShapes) {
    for (const cases::Case& c : cases_with_heads(GetParam(), shape.heads)) {
      SCOPED_TRACE(std::string(shape.tiles) + ", " + name(c));
      const Plan plan = cases::plan_case(cases::make(c).args(), gpu(80, 100, shape.shared_bytes));
      EXPECT_EQ(plan.kernel(), "cuda_portable");
      EXPECT_THAT(plan.describe(), HasSubstr(shape.tiles));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuPlans, ::testing::ValuesIn(ops_where(cases::is_attention)), operator_name);

// As few rows as hold all that share their keys, otherwise the most that fit; never more memory than there
// is.
TEST(GpuPlan, TileShapesAreTheLargestOnesThatFit) {
  for (const int32_t limit : {kLargeShared, kMiddleShared, kSmallShared}) {
    for (const int64_t d : {512, 576}) {
      for (const bool raw : {false, true}) {
        for (const int64_t heads : {1, 16, 17, 32, 33, 64, 65, 128}) {
          SCOPED_TRACE(::testing::Message() << limit << " B, d " << d << ", raw " << raw << ", h " << heads);
          ForwardShape shape;
          shape.s_q = 1;
          shape.h_q = heads;
          shape.d_qk = d;
          shape.main = {.present = true, .record = Record::kBf16, .dtype = raw ? DType::kE4M3 : DType::kBF16};
          const std::optional<int32_t> chosen = cuda::choose_config(shape, gpu(80, 1, limit));
          ASSERT_TRUE(chosen.has_value());
          const cuda::ForwardConfig& config = cuda::kForwardConfigs[*chosen];
          EXPECT_LE(cuda::shared_bytes(config, shape), limit);
          for (int32_t i = 0; i < cuda::kNumForwardConfigs; ++i) {
            const cuda::ForwardConfig& other = cuda::kForwardConfigs[i];
            if (cuda::shared_bytes(other, shape) > limit) continue;
            const bool enough = config.tile_rows >= heads;
            EXPECT_TRUE(enough ? other.tile_rows >= config.tile_rows || other.tile_rows < heads
                               : other.tile_rows <= config.tile_rows)
                << "row " << i << " of the table is better than row " << *chosen;
            if (other.tile_rows == config.tile_rows) {
              EXPECT_GE(i, *chosen) << "best first";
            }
          }
        }
      }
    }
  }
}

TEST(GpuPlan, RowsOfTheTableByDevice) {
  const auto row = [](int32_t limit, int64_t heads) {
    ForwardShape shape;
    shape.s_q = 1;
    shape.h_q = heads;
    shape.d_qk = 576;
    shape.main = {.present = true};
    return cuda::choose_config(shape, gpu(80, 1, limit)).value_or(-1);
  };
  EXPECT_EQ(row(kLargeShared, 128), 0);
  EXPECT_EQ(row(kMiddleShared, 128), 1);
  EXPECT_EQ(row(kLargeShared, 32), 2);
  EXPECT_EQ(row(kMiddleShared, 32), 2);
  EXPECT_EQ(row(kSmallShared, 128), 3);
  EXPECT_EQ(row(kSmallShared, 32), 3);
  EXPECT_EQ(row(kLargeShared, 16), 4);
  EXPECT_EQ(row(kMiddleShared, 16), 4);
  EXPECT_EQ(row(kSmallShared, 16), 4);
  EXPECT_EQ(row(48 << 10, 16), -1);
}

TEST(GpuPlan, Describe) {
  const auto text = [](const cases::Case& c) {
    return cases::plan_case(cases::make(c).args(), h200()).describe();
  };
  // Workspace: a row's partial results are 512 floats, a maximum and a sum.
  EXPECT_EQ(
      text(dense_case(64)),
      "dense_decode: kernel cuda_portable, 1 thread, 10000448 B workspace; b 2, s_q 1, h_q 64, h_kv 1, d "
      "576/512, q bfloat16, keys bfloat16 602x16 max_blocks 300 with lengths, scale 0.0416667, causal, "
      "out bfloat16; 2 tiles of 64 rows x 64 keys, up to 38 pieces a row of 64 keys at least");
  EXPECT_EQ(
      text(dense_case(64, true)),
      "dense_decode: kernel cuda_portable, 1 thread, 1315904 B workspace; b 2, s_q 1, h_q 64, h_kv 1, d "
      "576/512, q bfloat16, keys bfloat16 602x16 max_blocks 300 with lengths, scale 0.0416667, causal, "
      "batch_invariant, out bfloat16; 2 tiles of 64 rows x 64 keys, up to 5 pieces a row of 1024 keys at "
      "least");
  EXPECT_EQ(
      text(small_prefill_cases(cases::Op::kSparsePrefillFwd)[0]),
      "sparse_prefill_fwd: kernel cuda_portable, 1 thread, 0 B workspace; b 1, s_q 3, h_q 4, h_kv 1, d "
      "576/512, q bfloat16, keys bfloat16 200x1 topk 70 with lengths, scale 0.0416667, batch_invariant, "
      "out bfloat16; 3 tiles of 16 rows x 32 keys");
}

// The memory of a call with a plan follows from the shape and the device; the plan's size from the shape
// alone.
TEST(GpuPlan, CallersPlans) {
  const cases::CaseData data = cases::make(dense_case(64));
  auto args = std::get<DenseDecodeArgs>(cases::on_device(data.args(), h200().id));
  const int64_t size = decode_plan_size(args);
  EXPECT_EQ(size, 4 * (2 * 4 + 1024 + 1 + 1024));  // 2 requests of 4 times 16 rows
  alignas(16) static int32_t memory[4];            // nothing is read from it
  const int64_t stride = 1;
  const auto plan_at = [&](const int32_t* data_of_plan, int64_t n) {
    return TensorView(data_of_plan, DType::kInt32, {&n, 1}, {&stride, 1}, h200().id);
  };
  args.plan = plan_at(memory, size);
  const std::string text = plan(args, h200()).describe();
  EXPECT_THAT(text, HasSubstr(", planned, out bfloat16"));
  // Two query tiles and one more wave of blocks.
  EXPECT_THAT(text, HasSubstr("2 tiles of 64 rows x 64 keys, at most 134 pieces"));
  // 134 slots of 64 rows: 512 floats, a maximum and a sum.
  EXPECT_THAT(text, HasSubstr(std::to_string(134 * 64 * (512 * 4 + 8)) + " B workspace"));

  const auto refused = [&](const TensorView& given, bool batch_invariant) -> std::string {
    args.plan = given;
    args.batch_invariant = batch_invariant;
    try {
      plan(args, h200());
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(refused(plan_at(memory, 4), false), "dense_decode: plan must be int32 [8228], got int32 [4]");
  EXPECT_EQ(refused(plan_at(memory + 1, size), false),
            "dense_decode: plan must be memory that starts at a multiple of 16 bytes, got an address 4 bytes "
            "past one");
  EXPECT_EQ(refused(plan_at(memory, size), true),
            "dense_decode: plan must be left out where batch_invariant, got int32 [8228]");
}

// A row's pieces by its own length alone, whatever runs beside it.
TEST(GpuPlan, BatchInvariantPiecesDoNotDependOnTheDevice) {
  const auto pieces = [](const Device& device) {
    const std::string text = cases::plan_case(cases::make(dense_case(64, true)).args(), device).describe();
    return text.substr(text.find("keys, up to"));
  };
  EXPECT_EQ(pieces(h200()), pieces(gpu(90, 16, kLargeShared)));
  EXPECT_NE(cases::plan_case(cases::make(dense_case(64)).args(), h200()).describe(),
            cases::plan_case(cases::make(dense_case(64)).args(), gpu(90, 2, kLargeShared)).describe());
}

TEST(GpuPlan, DevicesThatAreRefused) {
  const cases::Case c = dense_case(64);
  EXPECT_EQ(refusal_of_gpu(c, gpu(75, 40, 65536)), "needs compute capability 8.0, the device has 7.5");
  EXPECT_EQ(refusal_of_gpu(c, gpu(90, 0, kLargeShared)), "needs a multiprocessor, the device has 0");
  EXPECT_EQ(refusal_of_gpu(c, gpu(80, 100, 48 << 10)),
            "needs 77232 B of shared memory, the device has 49152 B");
  EXPECT_EQ(refusal_of_gpu(c, h200()), "");
  EXPECT_THAT(refusal(c, gpu(75, 40, 65536)),
              ::testing::StartsWith("dense_decode: kernel must be one that supports this call, got no kernel "
                                    "that does: cuda_portable: needs compute capability 8.0, the device has "
                                    "7.5; cpu_"));
}

}  // namespace
}  // namespace tilewise::testing

#endif
