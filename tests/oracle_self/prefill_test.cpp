// The oracle against hand-computed cases: what all sparse operators share, seen through sparse_prefill_fwd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reference/attention.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::attention;
using reference::AttentionResult;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsNan;

constexpr double kTiny = 1e-6;

// One query token, d_qk 6, d_v 4. With softmax_scale ln 2 key j has the score j ln 2, that is, weight 2^j,
// and its value is 1 in column j + 1; column 0 is the score, which is a value too, as V is a part of K.
struct Small {
  Bf16 q{{1, 1, 6}};
  Bf16 kv{{3, 1, 6}};
  Ints indices = ints({1, 1, 3}, {0, 1, 2});
  Floats attn_sink;
  Floats sink_bias;
  Ints topk_length;
  SparsePrefillFwdArgs args;

  Small() {
    q.at({0, 0, 0}) = bf16(1);
    for (int64_t key = 0; key < 3; ++key) {
      kv.at({key, 0, 0}) = bf16(static_cast<float>(key));
      kv.at({key, 0, key + 1}) = bf16(1);
    }
    args.d_v = 4;
    args.softmax_scale = kLn2;
  }

  AttentionResult run(Arithmetic arithmetic = Arithmetic::kDouble) {
    args.q = q.view();
    args.kv = kv.view();
    args.indices = indices.view();
    if (!attn_sink.values.empty()) args.attn_sink = attn_sink.view();
    if (!sink_bias.values.empty()) args.sink_bias = sink_bias.view();
    if (!topk_length.values.empty()) args.topk_length = topk_length.view();
    return attention(args, arithmetic);
  }
};

// Column 0 of the output is the mean of the keys' numbers.
void expect_weights(const AttentionResult& result, double w0, double w1, double w2) {
  EXPECT_THAT(result.out, ElementsAre(DoubleNear(w1 + 2 * w2, kTiny), DoubleNear(w0, kTiny),
                                      DoubleNear(w1, kTiny), DoubleNear(w2, kTiny)));
}

void expect_lonely(const AttentionResult& result) {
  EXPECT_THAT(result.out, Each(0.0));
  EXPECT_THAT(result.lse, Each(kInf));
  EXPECT_THAT(result.max_logits, Each(-kInf));
}

TEST(OraclePrefill, ThreeKeysWeighOneTwoFour) {
  const AttentionResult result = Small().run();
  EXPECT_EQ(result.batch, 1);
  EXPECT_EQ(result.s_q, 1);
  EXPECT_EQ(result.h_q, 1);
  EXPECT_EQ(result.d_v, 4);
  expect_weights(result, 1.0 / 7, 2.0 / 7, 4.0 / 7);
  EXPECT_NEAR(result.lse[0], std::log(7.0), kTiny);
  EXPECT_NEAR(result.max_logits[0], std::log(4.0), kTiny);
  EXPECT_TRUE(result.lse_indexer.empty());
}

TEST(OraclePrefill, InvalidIndicesAreSkippedAndDuplicatesCount) {
  Small s;
  s.indices = ints(
      {1, 1, 7}, {-1, 0, 3, 1, std::numeric_limits<int32_t>::min(), 1, std::numeric_limits<int32_t>::max()});
  const AttentionResult result = s.run();
  expect_weights(result, 1.0 / 5, 4.0 / 5, 0);
  EXPECT_NEAR(result.lse[0], std::log(5.0), kTiny);
  EXPECT_NEAR(result.max_logits[0], std::log(2.0), kTiny);
}

TEST(OraclePrefill, OrderOfTheListDoesNotMatter) {
  Small s;
  s.indices = ints({1, 1, 3}, {2, 0, 1});
  expect_weights(s.run(), 1.0 / 7, 2.0 / 7, 4.0 / 7);
}

TEST(OraclePrefill, TopkLengthCutsTheListAndClamps) {
  Small s;
  s.topk_length = ints({1}, {2});
  expect_weights(s.run(), 1.0 / 3, 2.0 / 3, 0);
  s.topk_length = ints({1}, {1000});
  expect_weights(s.run(), 1.0 / 7, 2.0 / 7, 4.0 / 7);
  s.topk_length = ints({1}, {0});
  expect_lonely(s.run());
  s.topk_length = ints({1}, {-5});
  expect_lonely(s.run());
}

TEST(OraclePrefill, LonelyRows) {
  Small s;
  s.indices = ints({1, 1, 2}, {-1, 3});
  expect_lonely(s.run());
  s.indices = Ints({1, 1, 0});
  expect_lonely(s.run());
  s.attn_sink = floats({0.5f});
  expect_lonely(s.run());
  s.attn_sink = floats({std::numeric_limits<float>::infinity()});
  expect_lonely(s.run());
}

TEST(OraclePrefill, AllScoresMinusInfinityIsLonely) {
  Small s;
  s.q.at({0, 0, 0}) = bf16(-1);
  for (int64_t key = 0; key < 3; ++key) s.kv.at({key, 0, 0}) = bf16(std::numeric_limits<float>::infinity());
  expect_lonely(s.run());
}

TEST(OraclePrefill, MinusInfinityBesideFiniteScoresWeighsNothing) {
  Small s;
  s.q.at({0, 0, 5}) = bf16(1);  // a column of K that is none of V
  s.kv.at({2, 0, 5}) = bf16(-std::numeric_limits<float>::infinity());
  const AttentionResult result = s.run();
  expect_weights(result, 1.0 / 3, 2.0 / 3, 0);
  EXPECT_NEAR(result.lse[0], std::log(3.0), kTiny);
  EXPECT_NEAR(result.max_logits[0], std::log(2.0), kTiny);
}

TEST(OraclePrefill, PlusInfinityMakesOutAndLseNan) {
  Small s;
  s.kv.at({1, 0, 0}) = bf16(std::numeric_limits<float>::infinity());
  const AttentionResult result = s.run();
  EXPECT_THAT(result.out, Each(IsNan()));
  EXPECT_THAT(result.lse, Each(IsNan()));
  EXPECT_THAT(result.max_logits, Each(kInf));
}

TEST(OraclePrefill, NanInASelectedRowAndOnlyThere) {
  Small s;
  s.kv.at({1, 0, 4}) = 0x7FC0;  // q is 0 there, and it is no value
  const AttentionResult poisoned = s.run();
  EXPECT_THAT(poisoned.out, Each(IsNan()));
  EXPECT_THAT(poisoned.lse, Each(IsNan()));
  EXPECT_THAT(poisoned.max_logits, Each(IsNan()));
  s.indices = ints({1, 1, 1}, {1});  // also when it is the only key
  EXPECT_THAT(s.run().lse, Each(IsNan()));
  s.indices = ints({1, 1, 2}, {0, 2});
  expect_weights(s.run(), 1.0 / 5, 0, 4.0 / 5);
}

TEST(OraclePrefill, AttnSinkScalesTheOutputAlone) {
  Small s;
  s.attn_sink = floats({std::log(7.0f)});  // as heavy as all keys
  const AttentionResult half = s.run();
  expect_weights(half, 0.5 / 7, 1.0 / 7, 2.0 / 7);
  EXPECT_NEAR(half.lse[0], std::log(7.0), kTiny);
  EXPECT_NEAR(half.max_logits[0], std::log(4.0), kTiny);
  s.attn_sink = floats({-std::numeric_limits<float>::infinity()});
  expect_weights(s.run(), 1.0 / 7, 2.0 / 7, 4.0 / 7);
  for (float huge : {1e30f, std::numeric_limits<float>::infinity()}) {
    s.attn_sink = floats({huge});
    const AttentionResult none = s.run();
    EXPECT_THAT(none.out, Each(0.0));
    EXPECT_NEAR(none.lse[0], std::log(7.0), kTiny);
  }
}

TEST(OraclePrefill, SinkBiasJoinsOutAndLse) {
  Small s;
  s.sink_bias = floats({0});  // weight 1
  const AttentionResult result = s.run();
  expect_weights(result, 1.0 / 8, 2.0 / 8, 4.0 / 8);
  EXPECT_NEAR(result.lse[0], std::log(8.0), kTiny);
  EXPECT_NEAR(result.max_logits[0], std::log(4.0), kTiny);
  s.sink_bias = floats({-std::numeric_limits<float>::infinity()});
  EXPECT_NEAR(s.run().lse[0], std::log(7.0), kTiny);
  s.sink_bias = floats({1e30f});
  EXPECT_EQ(s.run().lse[0], static_cast<double>(1e30f));
  EXPECT_THAT(s.run().out, Each(0.0));
  s.sink_bias = floats({std::numeric_limits<float>::infinity()});
  EXPECT_EQ(s.run().lse[0], kInf);
  EXPECT_THAT(s.run().out, Each(0.0));
}

TEST(OraclePrefill, ALonelyRowAttendsToItsSinkBias) {
  Small s;
  s.indices = ints({1, 1, 1}, {-1});
  s.sink_bias = floats({0.5f});
  const AttentionResult result = s.run();
  EXPECT_THAT(result.out, Each(0.0));
  EXPECT_EQ(result.lse[0], 0.5);
  EXPECT_EQ(result.max_logits[0], -kInf);
  s.sink_bias = floats({-std::numeric_limits<float>::infinity()});
  expect_lonely(s.run());
}

TEST(OraclePrefill, SinkBiasInHalfTypes) {
  Small s;
  Bf16 bias16({1});
  bias16.at({0}) = bf16(0);
  s.args.sink_bias = bias16.view();
  EXPECT_NEAR(s.run().lse[0], std::log(8.0), kTiny);
  Fp16 half({1});
  half.at({0}) = f32_to_f16_bits(1.0f);
  s.args.sink_bias = half.view();
  EXPECT_NEAR(s.run().lse[0], std::log(7 + std::exp(1.0)), kTiny);
}

TEST(OraclePrefill, IndexerCoversTheFirstEntries) {
  Small s;
  s.indices = ints({1, 1, 4}, {0, -1, 2, 1});
  s.args.indexer_topk = 3;
  s.sink_bias = floats({3});  // takes no part
  EXPECT_NEAR(s.run().lse_indexer[0], std::log(5.0), kTiny);
  s.args.indexer_topk = 2;
  EXPECT_NEAR(s.run().lse_indexer[0], 0, kTiny);
  s.args.indexer_topk = 4;
  EXPECT_NEAR(s.run().lse_indexer[0], std::log(7.0), kTiny);
  s.topk_length = ints({1}, {1});  // entries past the length are not read
  EXPECT_NEAR(s.run().lse_indexer[0], 0, kTiny);
  s.indices = ints({1, 1, 4}, {-1, 0, 1, 2});
  s.topk_length = ints({1}, {4});
  s.args.indexer_topk = 1;
  EXPECT_EQ(s.run().lse_indexer[0], kInf);
}

TEST(OraclePrefill, NanPastTheIndexersEntries) {
  Small s;
  s.kv.at({2, 0, 4}) = 0x7FC0;
  s.args.indexer_topk = 2;
  const AttentionResult result = s.run();
  EXPECT_TRUE(std::isnan(result.lse[0]));
  EXPECT_NEAR(result.lse_indexer[0], std::log(3.0), kTiny);
}

TEST(OraclePrefill, LargeLogitsKeepTheirDifferences) {
  for (float offset : {-245760.0f, -152.0f, 200.0f}) {
    Small s;
    s.q.at({0, 0, 5}) = bf16(offset);
    for (int64_t key = 0; key < 3; ++key) s.kv.at({key, 0, 5}) = bf16(1);
    const AttentionResult result = s.run();
    const double shift = static_cast<double>(bf16_bits_to_f32(bf16(offset))) * kLn2;
    expect_weights(result, 1.0 / 7, 2.0 / 7, 4.0 / 7);
    EXPECT_NEAR(result.lse[0] - shift, std::log(7.0), kTiny);
  }
}

TEST(OraclePrefill, NoTokens) {
  Small s;
  s.q = Bf16({0, 3, 6});
  s.indices = Ints({0, 1, 3});
  EXPECT_TRUE(s.run().out.empty());
  EXPECT_TRUE(s.run().lse.empty());
}

// Many heads and tokens against the textbook formula, in every block size that the loops use, through strided
// views.
TEST(OraclePrefill, EqualsThePlainSoftmaxOnRandomData) {
  constexpr int64_t kTokens = 3;
  constexpr int64_t kHeads = 67;
  constexpr int64_t kRows = 50;
  Bf16 q({kTokens, kHeads, 24});
  Bf16 kv({kRows, 1, 24});
  fill_random(q, 1);
  fill_random(kv, 2);
  std::mt19937 generator(3);
  Ints indices({kTokens, 1, 37});
  for (int32_t& index : indices.values) index = static_cast<int32_t>(generator() % (kRows + 6)) - 3;

  SparsePrefillFwdArgs args;
  const std::vector<int64_t> q_shape = {kTokens, kHeads, 20};
  const std::vector<int64_t> q_strides = {kHeads * 24, 24, 1};
  const std::vector<int64_t> kv_shape = {kRows, 1, 20};
  const std::vector<int64_t> kv_strides = {24, 24, 1};
  args.q = TensorView(q.values.data(), DType::kBF16, q_shape, q_strides);
  args.kv = TensorView(kv.values.data(), DType::kBF16, kv_shape, kv_strides);
  args.indices = indices.view();
  args.d_v = 17;
  args.softmax_scale = 0.25f;
  const AttentionResult result = attention(args, Arithmetic::kDouble);
  const AttentionResult rounded = attention(args, Arithmetic::kRounded);

  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<std::vector<double>> keys;
    for (int64_t i = 0; i < 37; ++i) {
      const int64_t index = indices.at({t, 0, i});
      if (index >= 0 && index < kRows) keys.push_back(values_of(kv, {index}, 20));
    }
    for (int64_t h = 0; h < kHeads; ++h) {
      const PlainRow expected = plain_softmax(values_of(q, {t, h}, 20), keys, 0.25, 17);
      const size_t row = static_cast<size_t>(result.row(0, t, h));
      EXPECT_NEAR(result.lse[row], expected.lse, 1e-12);
      EXPECT_NEAR(result.max_logits[row], expected.max, 1e-12);
      EXPECT_NEAR(rounded.lse[row], expected.lse, 1e-5);
      for (size_t c = 0; c < 17; ++c) {
        EXPECT_NEAR(result.out[row * 17 + c], expected.out[c], 1e-12);
        EXPECT_NEAR(rounded.out[row * 17 + c], expected.out[c], 0.02);
      }
    }
  }
}

// Weights 1/3 and 2/3: P is (1/2, 1), exact in bfloat16. With softmax_scale -1, P = exp(-1) is not.
TEST(OraclePrefill, RoundedArithmeticRoundsPButNotItsSum) {
  Small s;
  s.indices = ints({1, 1, 2}, {0, 1});
  s.args.softmax_scale = -1;
  const double p = std::exp(-1.0);
  const double p_bf16 = bf16_bits_to_f32(bf16(static_cast<float>(p)));
  ASSERT_GT(std::fabs(p - p_bf16), 1e-5);
  const AttentionResult oracle = s.run();
  expect_weights(oracle, 1 / (1 + p), p / (1 + p), 0);
  const AttentionResult rounded = s.run(Arithmetic::kRounded);
  EXPECT_NEAR(rounded.out[1], 1 / (1 + p), 1e-7);
  EXPECT_NEAR(rounded.out[2], p_bf16 / (1 + p), 1e-7);
  EXPECT_NEAR(rounded.lse[0], std::log(1 + p), kTiny);
}

}  // namespace
}  // namespace tilewise::oracle_self
