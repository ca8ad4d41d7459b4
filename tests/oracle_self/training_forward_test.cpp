// The oracle's forward training operators against masks and outputs written by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/oracle_self/training_build.h"

namespace tilewise::oracle_self {
namespace {

using reference::TrainingResult;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsNan;

constexpr double kTiny = 1e-6;

// Who sees whom, a line for each query row of a head: '1' and '.' for every key row, "not written".
std::vector<std::string> picture(TrainingCall call, int64_t head, bool block_sparse) {
  // All scores are 0, and values are rows of the identity: out is 1 / count at the keys that are seen.
  const int64_t keys = call.k.shape[0];
  std::fill(call.q.values.begin(), call.q.values.end(), 0.0f);
  std::fill(call.v.values.begin(), call.v.values.end(), 0.0f);
  for (int64_t key = 0; key < keys; ++key) {
    for (int64_t kv_head = 0; kv_head < call.v.shape[1]; ++kv_head) call.v.at({key, kv_head, key}) = 1;
  }
  const TrainingResult result = call.forward(block_sparse);
  std::vector<std::string> lines;
  for (int64_t token = 0; token < result.s_q; ++token) {
    const size_t row = static_cast<size_t>(result.row(0, token, head));
    std::string line;
    double count = 0;
    for (size_t key = 0; key < static_cast<size_t>(keys); ++key) {
      const double weight = result.out[row * static_cast<size_t>(keys) + key];
      line += weight > 0 ? '1' : '.';
      if (weight > 0) count += 1;
    }
    if (result.written[static_cast<size_t>(token)] == 0) {
      EXPECT_TRUE(std::isnan(result.lse[row]) && std::isnan(result.out[row * static_cast<size_t>(keys)]));
      line = "not written";
    } else if (count > 0) {
      EXPECT_NEAR(result.lse[row], std::log(count), kTiny);
      EXPECT_EQ(result.max_logits[row], 0);
    } else {
      EXPECT_EQ(result.lse[row], kInf);
      EXPECT_EQ(result.max_logits[row], -kInf);
    }
    lines.push_back(line);
  }
  return lines;
}

std::vector<std::string> dense_picture(const TrainingCall& call) { return picture(call, 0, false); }

TrainingCall small(int32_t len_q, int32_t len_k, int64_t h_q = 1) {
  return TrainingCall(len_q, len_k, h_q, 1, 4, len_k);
}

TEST(OracleTrainingForward, NoMask) { EXPECT_THAT(dense_picture(small(2, 3)), ElementsAre("111", "111")); }

TEST(OracleTrainingForward, CausalIsAlignedAtTheEnds) {
  TrainingCall fewer = small(2, 4);
  fewer.causal = true;
  EXPECT_THAT(dense_picture(fewer), ElementsAre("111.", "1111"));
  TrainingCall more = small(4, 2);
  more.causal = true;
  EXPECT_THAT(dense_picture(more), ElementsAre("..", "..", "1.", "11"));
}

TEST(OracleTrainingForward, WindowsAndCausalIntersect) {
  TrainingCall call = small(4, 5);
  call.window = {1, 0};
  EXPECT_THAT(dense_picture(call), ElementsAre("11...", ".11..", "..11.", "...11"));
  call.window = {0, 1};
  EXPECT_THAT(dense_picture(call), ElementsAre(".11..", "..11.", "...11", "....1"));
  call.causal = true;
  EXPECT_THAT(dense_picture(call), ElementsAre(".1...", "..1..", "...1.", "....1"));
  call.window = {-1, 0};
  EXPECT_THAT(dense_picture(call), ElementsAre("11...", "111..", "1111.", "11111"));
  call.causal = false;
  call.window = {2, -1};
  EXPECT_THAT(dense_picture(call), ElementsAre("11111", "11111", ".1111", "..111"));
}

TEST(OracleTrainingForward, SequencesAreApart) {
  TrainingCall call = small(6, 5);
  call.cu_seqlens_q = ints({4}, {1, 3, 3, 5});
  call.cu_seqlens_k = ints({4}, {0, 2, 3, 5});
  call.causal = true;
  EXPECT_THAT(dense_picture(call),
              ElementsAre("not written", "1....", "11...", "...1.", "...11", "not written"));
}

TEST(OracleTrainingForward, CuSeqlensAreClampedAndADecreaseIsAnEmptySequence) {
  TrainingCall call = small(4, 3);
  call.cu_seqlens_q = ints({5}, {-7, 2, 1, 3, 100});
  call.cu_seqlens_k = ints({5}, {0, 1, 2, 2, 50});
  // Sequences of queries [0, 2), none, [1, 3), [3, 4); of keys [0, 1), [1, 2), none, [2, 3). The third one's
  // results stay.
  EXPECT_THAT(dense_picture(call), ElementsAre("1..", "...", "...", "..1"));
  call.cu_seqlens_q = ints({5}, {1, 3, 0, 2, 2});
  call.cu_seqlens_k = ints({5}, {0, 1, 0, 3, 3});
  EXPECT_THAT(dense_picture(call), ElementsAre("111", "111", "1..", "not written"));
}

TEST(OracleTrainingForward, LongSequencesAreCut) {
  TrainingCall call = small(5, 6);
  call.cu_seqlens_q = ints({3}, {0, 3, 5});
  call.cu_seqlens_k = ints({3}, {0, 4, 6});
  call.max_seqlen_q = 2;
  call.max_seqlen_k = 3;
  call.causal = true;
  EXPECT_THAT(dense_picture(call), ElementsAre("11....", "111...", "not written", "....1.", "....11"));
}

TEST(OracleTrainingForward, EmptySequencesAndNoSequence) {
  TrainingCall call = small(2, 2);
  call.cu_seqlens_k = ints({2}, {1, 1});
  EXPECT_THAT(dense_picture(call), ElementsAre("..", ".."));
  call.cu_seqlens_q = ints({1}, {0});
  call.cu_seqlens_k = ints({1}, {0});
  EXPECT_THAT(dense_picture(call), ElementsAre("not written", "not written"));
}

TEST(OracleTrainingForward, SelectionsOfBlocks) {
  TrainingCall call = small(5, 8);  // query blocks of 2, key blocks of 3
  EXPECT_THAT(picture(call, 0, true), Each("11111111"));
  // Pads, a duplicate, blocks that do not exist; more rows than query blocks.
  call.q2k = ints({4, 3}, {2, -1, 0, 1, 1, -5, 3, 100, -2147483648, 0, 1, 2});
  EXPECT_THAT(picture(call, 0, true),
              ElementsAre("111...11", "111...11", "...111..", "...111..", "........"));
  call.causal = true;
  EXPECT_THAT(picture(call, 0, true),
              ElementsAre("111.....", "111.....", "...111..", "...111..", "........"));
  call.window = {1, -1};
  EXPECT_THAT(picture(call, 0, true),
              ElementsAre("..1.....", "........", "....11..", ".....1..", "........"));
}

TEST(OracleTrainingForward, MissingRowsOfASelectionSelectNothing) {
  TrainingCall call = small(4, 3);
  call.q2k = ints({1, 1}, {0});
  EXPECT_THAT(picture(call, 0, true), ElementsAre("111", "111", "...", "..."));
  call.q2k = Ints({2, 0});
  EXPECT_THAT(picture(call, 0, true), Each("..."));
}

TEST(OracleTrainingForward, SelectionsOfHeadsAndSequences) {
  TrainingCall call = small(5, 8, 2);
  call.cu_seqlens_q = ints({3}, {0, 3, 5});
  call.cu_seqlens_k = ints({3}, {0, 4, 8});
  call.q2k = ints({2, 3, 1}, {0, 1, 0, 1, 0, 1});  // two blocks of the first sequence, one of the second
  EXPECT_THAT(picture(call, 0, true),
              ElementsAre("111.....", "111.....", "...1....", "....111.", "....111."));
  EXPECT_THAT(picture(call, 1, true),
              ElementsAre("...1....", "...1....", "111.....", ".......1", ".......1"));
}

// Weights 1, 2 and 4, as 7 keys of weight 1.
TrainingCall weighted(float sink) {
  TrainingCall call(1, 3, 1, 1, 1, 3);
  call.scale = kLn2;
  call.q.values = {1};
  call.k.values = {0, 1, 2};
  call.v.values = {1, 0, 0, 0, 1, 0, 0, 0, 1};
  call.sink_bias = floats({sink});
  return call;
}

TEST(OracleTrainingForward, SinkBiasJoinsOutAndLse) {
  const TrainingResult result = weighted(0).forward(false);
  EXPECT_NEAR(result.out[0], 1.0 / 8, kTiny);
  EXPECT_NEAR(result.out[1], 2.0 / 8, kTiny);
  EXPECT_NEAR(result.out[2], 4.0 / 8, kTiny);
  EXPECT_NEAR(result.lse[0], std::log(8.0), kTiny);
  const TrainingResult without = weighted(-HUGE_VALF).forward(false);
  EXPECT_NEAR(without.out[2], 4.0 / 7, kTiny);
  EXPECT_NEAR(without.lse[0], std::log(7.0), kTiny);
  const TrainingResult nothing_else = weighted(HUGE_VALF).forward(false);
  EXPECT_THAT(nothing_else.out, Each(0.0));
  EXPECT_EQ(nothing_else.lse[0], kInf);
  EXPECT_EQ(weighted(1e30f).forward(false).lse[0], static_cast<double>(1e30f));
}

TEST(OracleTrainingForward, ALonelyRowAttendsToItsSinkBias) {
  for (const float sink : {0.5f, -3.0f, HUGE_VALF}) {
    TrainingCall call = weighted(sink);
    call.cu_seqlens_k = ints({2}, {0, 0});
    const TrainingResult result = call.forward(false);
    EXPECT_THAT(result.out, Each(0.0));
    EXPECT_EQ(result.lse[0], static_cast<double>(sink));
    EXPECT_EQ(result.max_logits[0], -kInf);
  }
  TrainingCall call = weighted(-HUGE_VALF);
  call.cu_seqlens_k = ints({2}, {0, 0});
  EXPECT_EQ(call.forward(false).lse[0], kInf);
}

TEST(OracleTrainingForward, NanInAKeyReachesThoseWhoSeeIt) {
  TrainingCall call = small(3, 3);
  call.randomise();
  call.causal = true;
  call.k.at({1, 0, 2}) = NAN;
  const TrainingResult result = call.forward(false);
  EXPECT_TRUE(std::isfinite(result.lse[0]) && std::isfinite(result.out[0]));
  EXPECT_TRUE(std::isnan(result.lse[1]) && std::isnan(result.lse[2]));
  EXPECT_TRUE(std::isnan(result.out[3]) && std::isnan(result.max_logits[1]));
}

// GQA and sizes past the loops' blocks against the textbook formula, and the sensitivity against attention's
// of a token list with the same keys.
TEST(OracleTrainingForward, EqualsThePlainSoftmaxOnRandomData) {
  TrainingCall call(19, 23, 6, 2, 20, 7);
  call.randomise();
  call.causal = true;
  call.window = {9, -1};
  const TrainingResult result = call.forward(false);
  for (int64_t token = 0; token < 19; ++token) {
    for (int64_t head = 0; head < 6; ++head) {
      double max = -kInf;
      double sum = 0;
      std::vector<double> out(7);
      std::vector<double> scores;
      for (int64_t key = token + 4 - 9; key <= token + 4; ++key) {
        if (key < 0) continue;
        double score = 0;
        for (int64_t c = 0; c < 20; ++c) {
          score += static_cast<double>(call.q.at({token, head, c})) * call.k.at({key, head / 3, c});
        }
        score *= static_cast<double>(call.scale);
        max = std::max(max, score);
        sum += std::exp(score);
        for (int64_t c = 0; c < 7; ++c) {
          out[static_cast<size_t>(c)] += std::exp(score) * call.v.at({key, head / 3, c});
        }
      }
      const size_t row = static_cast<size_t>(result.row(0, token, head));
      EXPECT_NEAR(result.lse[row], std::log(sum), 1e-12);
      EXPECT_NEAR(result.max_logits[row], max, 1e-12);
      for (size_t c = 0; c < 7; ++c) EXPECT_NEAR(result.out[row * 7 + c], out[c] / sum, 1e-12);
    }
  }
}

TEST(OracleTrainingForward, SensitivityIsThatOfAttention) {
  TrainingCall call(2, 9, 3, 1, 6, 6);
  call.randomise();
  call.v = call.k;
  call.sink_bias = floats({0.5f, -1.0f, 2.0f});
  SparsePrefillFwdArgs args;
  const Ints indices = ints({2, 1, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  args.q = call.q.view();
  args.kv = call.k.view();
  args.indices = indices.view();
  args.d_v = 6;
  args.softmax_scale = call.scale;
  args.sink_bias = call.sink_bias.view();
  const reference::AttentionResult expected = attention(args, reference::Arithmetic::kDouble);
  const TrainingResult result = call.forward(false);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(result.sensitivity[i], expected.sensitivity[i], 1e-6);
  EXPECT_THAT(result.sensitivity, Each(::testing::Gt(0.1)));
}

// P = exp(-1) is neither exact in bfloat16 nor in float16.
TEST(OracleTrainingForward, RoundedArithmeticRoundsPToTheTypeOfQ) {
  TrainingCall call(1, 2, 1, 1, 1, 2);
  call.scale = 1;
  call.q.values = {1};
  call.k.values = {0, -1};
  call.v.values = {1, 0, 0, 1};
  const float p = std::exp(-1.0f);
  const uint16_t one_bf16 = bf16(1);
  const uint16_t one_fp16 = f32_to_f16_bits(1);
  DensePrefillFwdArgs args = call.common<DensePrefillFwdArgs>();
  args.q = TensorView(&one_bf16, DType::kBF16, {1, 1, 1});
  const TrainingResult in_bf16 = training_forward(args, reference::Arithmetic::kRounded);
  EXPECT_NEAR(in_bf16.out[1], bf16_bits_to_f32(bf16(p)) / (1 + p), 1e-7);
  args.q = TensorView(&one_fp16, DType::kFP16, {1, 1, 1});
  const TrainingResult in_fp16 = training_forward(args, reference::Arithmetic::kRounded);
  EXPECT_NEAR(in_fp16.out[1], f16_bits_to_f32(f32_to_f16_bits(p)) / (1 + p), 1e-7);
  EXPECT_NE(in_fp16.out[1], in_bf16.out[1]);
  EXPECT_NEAR(in_bf16.lse[0], std::log(1 + p), 1e-6);
}

TEST(OracleTrainingForward, NoQueriesAndNoKeys) {
  const TrainingResult no_queries = small(0, 3).forward(false);
  EXPECT_TRUE(no_queries.out.empty() && no_queries.written.empty());
  TrainingCall call(2, 0, 1, 1, 4, 4);
  EXPECT_THAT(call.forward(false).lse, Each(kInf));
}

}  // namespace
}  // namespace tilewise::oracle_self
