// Every tile shape of the portable kernel on the GPU at hand: a device with less shared memory is planned
// for, which any larger one can run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

#include "cases/data.h"
#include "cases/judge.h"
#include "tests/support/device.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/tile_shapes.h"

namespace tilewise::testing {
namespace {

using ::testing::HasSubstr;

class TileShapes : public OfOperator {
 protected:
  static void SetUpTestSuite() { setenv("TILEWISE_TEST_DEVICE", "cuda", 1); }
};

TEST_P(TileShapes, AgreeWithTheOracle) {
  for (const TileShape& shape : kTileShapes) {
    Device smaller = device();
    if (shape.shared_bytes > smaller.cuda_shared_bytes) continue;
    smaller.cuda_shared_bytes = shape.shared_bytes;
    for (const cases::Case& c : cases_with_heads(GetParam(), shape.heads)) {
      SCOPED_TRACE(std::string(shape.tiles) + ", " + name(c));
      cases::CaseData data = cases::make(c);
      const Plan plan = cases::plan_case(data.args(), smaller);
      ASSERT_THAT(plan.describe(), HasSubstr(shape.tiles));
      data.reset_outputs();
      cases::run_case(plan, data.args(), {});
      EXPECT_TRUE(agrees(data, cases::truth_of(data)));
    }
  }
}

// Scores so large that a rounded exponent would be off by hundreds: weights are measured from the maximum
// itself.
TEST(HugeScores, KeepTheirWeights) {
  setenv("TILEWISE_TEST_DEVICE", "cuda", 1);
  constexpr uint16_t k1024 = 0x4480;  // bf16
  constexpr uint16_t k8256 = 0x4601;
  cases::CaseData data = cases::make(small_cases(cases::Op::kSparsePrefillFwd)[0]);
  const auto fill = [&](const char* tensor, uint16_t value) {
    cases::for_each_run(data.view(tensor), [&](uint8_t* run, int64_t bytes) {
      std::fill_n(reinterpret_cast<uint16_t*>(run), bytes / 2, value);
    });
  };
  fill("q", k1024);
  fill("kv", k8256);
  fill_elements(data.view("indices"), Fill::kZeros);
  SparsePrefillFwdArgs args = std::get<SparsePrefillFwdArgs>(data.args());
  args.softmax_scale = 1.0f;
  args.topk_length = {};
  args.attn_sink = {};
  args.sink_bias = {};
  call(args);
  const std::vector<uint8_t> out = cases::contents(args.out);
  ASSERT_FALSE(out.empty());
  for (size_t i = 0; i < out.size(); i += 2)
    ASSERT_EQ(out[i] | out[i + 1] << 8, k8256) << "element " << i / 2;
}

INSTANTIATE_TEST_SUITE_P(All, TileShapes, ::testing::ValuesIn(ops_where(cases::is_attention)), operator_name);

}  // namespace
}  // namespace tilewise::testing
