// The oracle of merging partials: hand-computed weights, empty partials, and parts of one attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/combine.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::attention;
using reference::AttentionResult;
using reference::combine;
using reference::compare_partials;
using ::testing::Each;
using ::testing::IsNan;

constexpr double kTiny = 1e-6;
const float kInfF = static_cast<float>(kInf);

// Two partials of one row: (10, 1) and (40, 4).
struct Pair {
  Floats out{{2, 1, 1, 2}};
  Floats lse{{2, 1, 1}};
  CombinePartialsArgs args;

  Pair(float lse0, float lse1) {
    out.values = {10, 1, 40, 4};
    lse.values = {lse0, lse1};
    args.out_partials = out.view();
    args.lse_partials = lse.view();
  }
  AttentionResult run(Arithmetic arithmetic = Arithmetic::kDouble) const { return combine(args, arithmetic); }
};

TEST(OracleCombine, WeighsByTheExponentials) {
  for (Arithmetic arithmetic : {Arithmetic::kDouble, Arithmetic::kRounded}) {
    const AttentionResult result = Pair(0, kLn2).run(arithmetic);  // 1/3 and 2/3
    EXPECT_NEAR(result.out[0], 30, 1e-5);
    EXPECT_NEAR(result.out[1], 3, kTiny);
    EXPECT_NEAR(result.lse[0], std::log(3.0), kTiny);
  }
}

TEST(OracleCombine, BaseTwo) {
  Pair pair(0, 1);
  pair.args.base2 = true;
  EXPECT_NEAR(pair.run().out[0], 30, 1e-12);
  EXPECT_NEAR(pair.run().lse[0], std::log(3.0), 1e-12);
  EXPECT_NEAR(pair.run(Arithmetic::kRounded).out[0], 30, 1e-5);
  pair.args.base2 = false;
  EXPECT_NEAR(pair.run().lse[0], std::log(1 + std::exp(1.0)), 1e-12);
}

TEST(OracleCombine, LargeLogsKeepTheirDifference) {
  EXPECT_NEAR(Pair(-245000, -245000).run().out[0], 25, 1e-9);
  EXPECT_NEAR(Pair(245000, 245000).run().lse[0], 245000 + std::log(2.0), 1e-9);
}

TEST(OracleCombine, SinkIsAppliedOnceAndLeavesLse) {
  Pair pair(0, kLn2);
  const Floats sink = floats({std::log(3.0f)});
  pair.args.attn_sink = sink.view();
  EXPECT_NEAR(pair.run().out[0], 15, 1e-5);
  EXPECT_NEAR(pair.run().lse[0], std::log(3.0), kTiny);
  const Floats all = floats({kInfF});
  pair.args.attn_sink = all.view();
  EXPECT_THAT(pair.run().out, Each(0.0));
}

TEST(OracleCombine, EmptyPartialsAreNotRead) {
  for (float empty : {kInfF, -kInfF}) {
    Pair pair(empty, 3);
    pair.out.values[0] = pair.out.values[1] = std::nanf("");
    EXPECT_THAT(pair.run().out, ::testing::ElementsAre(40, 4));
    EXPECT_NEAR(pair.run().lse[0], 3, 1e-12);
  }
}

TEST(OracleCombine, AllEmptyIsLonely) {
  Pair pair(kInfF, -kInfF);
  const Floats sink = floats({1});
  pair.args.attn_sink = sink.view();
  EXPECT_THAT(pair.run().out, Each(0.0));
  EXPECT_EQ(pair.run().lse[0], kInf);
}

TEST(OracleCombine, NanSpreads) {
  const AttentionResult result = Pair(std::nanf(""), 3).run();
  EXPECT_THAT(result.out, Each(IsNan()));
  EXPECT_TRUE(std::isnan(result.lse[0]));
}

TEST(OracleCombine, HalfPartialsAndStrides) {
  // [n 2, s 1, h 2, d 2] inside rows of four
  Bf16 out({2, 1, 2, 4}, 0x7FC0);
  Floats lse({2, 1, 2});
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t c = 0; c < 2; ++c) out.at({i, 0, h, c}) = bf16(static_cast<float>(8 * i + 4 * h + c));
    }
  }
  CombineCommon args;
  const std::vector<int64_t> shape = {2, 1, 2, 2};
  const std::vector<int64_t> strides = {8, 8, 4, 1};
  args.out_partials = TensorView(out.values.data(), DType::kBF16, shape, strides);
  args.lse_partials = lse.view();
  EXPECT_THAT(combine(args, Arithmetic::kDouble).out,
              ::testing::Pointwise(::testing::DoubleNear(1e-12), {4.0, 5.0, 8.0, 9.0}));
}

// A decode call whose keys are dealt to three splits, each of which the oracle evaluates by itself.
struct Splits {
  static constexpr int64_t kSplits = 3;
  Bf16 q{{2, 2, 512}};
  Bf16 cache{{4, 4, 1, 512}};
  Ints lists{{2, 9}};
  Ints positions = ints({2}, {0, 1});
  Floats cos_sin{{2, 64}};
  Floats sink = floats({1, 2});
  Floats o_accum{{kSplits, 2, 2, 512}};
  Floats lse_accum{{kSplits, 2, 2}};
  FusedDecodePartialsArgs args;

  Splits() {
    fill_random(q, 1, 0.1f);
    fill_random(cache, 2);
    for (int32_t i = 0; i < 18; ++i) lists.values[static_cast<size_t>(i)] = (i * 7) % 16;
    for (int64_t j = 0; j < 32; ++j) {
      cos_sin.at({0, j}) = 1;
      cos_sin.at({1, j}) = 0.6f;
      cos_sin.at({1, 32 + j}) = 0.8f;
    }
    for (size_t i = 9 + 3; i < 9 + 6; ++i) lists.values[i] = -1;  // token 1's second split is empty
    args.q = q.view();
    args.token_positions = positions.view();
    args.cos_sin_cache = cos_sin.view();
    args.kv_cache = cache.view();
    args.attn_sink = sink.view();
    args.num_splits = kSplits;
    args.o_accum = o_accum.view();
    args.lse_accum = lse_accum.view();
    for (int64_t split = 0; split < kSplits; ++split) write(split);
    args.indices = lists.view();
  }

  void write(int64_t split) {
    Ints part({2, 3});
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < 3; ++i) part.at({s, i}) = lists.at({s, 3 * split + i});
    }
    args.indices = part.view();
    const AttentionResult result = attention(args, Arithmetic::kRounded);
    for (size_t i = 0; i < 4 * 512; ++i) {
      o_accum.values[static_cast<size_t>(split) * 4 * 512 + i] = static_cast<float>(result.out[i]);
    }
    for (size_t i = 0; i < 4; ++i) {
      const double lse = result.lse[i];
      lse_accum.values[static_cast<size_t>(split) * 4 + i] =
          static_cast<float>(lse == kInf ? -kInf : lse / std::log(2.0));
    }
  }

  reference::Comparison compare() const {
    return compare_partials(args, attention(args, Arithmetic::kDouble),
                            attention(args, Arithmetic::kRounded));
  }
};

TEST(OracleCombine, PartsOfAnAttentionMergeToIt) {
  Splits splits;
  ASSERT_EQ(splits.lse_accum.at({1, 1, 0}), -kInfF);
  const reference::Comparison found = splits.compare();
  EXPECT_TRUE(found.ok) << found.where;
  EXPECT_GT(found.max_error, 0);
}

TEST(OracleCombine, ComparisonOfPartialsFindsFaults) {
  Splits wrong_log;
  wrong_log.lse_accum.at({0, 0, 1}) += 0.1f;
  EXPECT_FALSE(wrong_log.compare().ok);

  Splits wrong_value;
  wrong_value.o_accum.at({2, 1, 1, 300}) += 0.5f;
  EXPECT_FALSE(wrong_value.compare().ok);
  EXPECT_THAT(wrong_value.compare().where, ::testing::HasSubstr("merged out, row 3, column 300"));

  Splits not_zero;
  not_zero.o_accum.at({1, 1, 0, 7}) = 1e-30f;
  EXPECT_FALSE(not_zero.compare().ok);
  EXPECT_THAT(not_zero.compare().where, ::testing::HasSubstr("row 6 of the partials"));

  Splits wrong_empty;
  wrong_empty.lse_accum.at({1, 1, 0}) = kInfF;
  EXPECT_FALSE(wrong_empty.compare().ok);
}

}  // namespace
}  // namespace tilewise::oracle_self
