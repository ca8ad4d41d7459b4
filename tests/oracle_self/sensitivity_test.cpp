// The oracle's sensitivity: how far errors of the weights move a row, by hand and by trying it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/attention.h"
#include "reference/combine.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::attention;
using reference::AttentionResult;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kTiny = 1e-6;

// One query token of zeros, so that every key has the same weight; V is the first 2 of 4 columns.
struct Even {
  Bf16 q{{1, 1, 4}};
  Bf16 kv{{3, 1, 4}};
  Ints indices = ints({1, 1, 2}, {0, 1});
  Floats sink;
  SparsePrefillFwdArgs args;

  Even() {
    kv.values = {bf16(3), bf16(1), bf16(7), 0, bf16(1), bf16(5), 0, 0, bf16(3), bf16(1), 0, 0};
    args.d_v = 2;
  }
  AttentionResult run(Arithmetic arithmetic = Arithmetic::kDouble) {
    args.q = q.view();
    args.kv = kv.view();
    args.indices = indices.view();
    return attention(args, arithmetic);
  }
};

// Values (3, 1) and (1, 5) around their mean (2, 3): the columns have sqrt(2 / 4 * 1) and sqrt(2 / 4 * 4).
TEST(OracleSensitivity, IsThatOfTheWorstColumn) {
  EXPECT_THAT(Even().run().sensitivity, ElementsAre(DoubleNear(std::sqrt(2.0), kTiny)));
}

// Three values 3, 1, 3 around 7/3, and 1, 5, 1 around the same.
TEST(OracleSensitivity, CountsDuplicatesAsOftenAsListed) {
  Even e;
  e.indices = ints({1, 1, 3}, {0, 1, 0});
  const double squares = 2 * std::pow(4.0 / 3, 2) + std::pow(8.0 / 3, 2);
  EXPECT_THAT(e.run().sensitivity, ElementsAre(DoubleNear(std::sqrt(squares) / 3, kTiny)));
}

TEST(OracleSensitivity, OneKeyAndEqualKeysHaveNone) {
  Even e;
  e.indices = ints({1, 1, 1}, {1});
  EXPECT_THAT(e.run().sensitivity, ElementsAre(0.0));
  e.indices = ints({1, 1, 2}, {0, 2});
  EXPECT_THAT(e.run().sensitivity, ElementsAre(0.0));
}

// Beside weights that sum up to 2 the sink, whose value is 0, leaves a quarter of the output: values (3, 1)
// and (1, 5) with weights of 1/8 around (1/2, 3/4).
TEST(OracleSensitivity, ASinkIsAKeyWithoutAValue) {
  Even e;
  e.sink = floats({std::log(6.0f)});
  const double second = std::hypot(0.25, 4.25) / 8;
  e.args.attn_sink = e.sink.view();
  EXPECT_THAT(e.run().sensitivity, ElementsAre(DoubleNear(second, kTiny)));
  e.args.attn_sink = {};
  e.args.sink_bias = e.sink.view();
  EXPECT_THAT(e.run().sensitivity, ElementsAre(DoubleNear(second, kTiny)));
}

// One key with half of the weight: an error of one percent moves (1, 5) / 2 by a quarter of that.
TEST(OracleSensitivity, OneKeyBesideASinkHasIt) {
  Even e;
  e.indices = ints({1, 1, 1}, {1});
  e.sink = floats({0});
  e.args.sink_bias = e.sink.view();
  EXPECT_THAT(e.run().sensitivity, ElementsAre(DoubleNear(5.0 / 4, kTiny)));
}

TEST(OracleSensitivity, RowsWithoutAnOrdinarySumHaveNone) {
  Even e;
  e.indices = ints({1, 1, 2}, {-1, 3});
  EXPECT_THAT(e.run().sensitivity, ElementsAre(0.0));
  e.indices = ints({1, 1, 2}, {0, 1});
  e.q.values[3] = bf16(1);
  e.kv.values[3] = bf16(static_cast<float>(kInf));
  EXPECT_THAT(e.run().sensitivity, ElementsAre(0.0));
  e.kv.values[3] = bf16(std::nanf(""));
  EXPECT_THAT(e.run().sensitivity, ElementsAre(0.0));
}

TEST(OracleSensitivity, ValuesWhoseSquaresLeaveFp32HaveNone) {
  Even e;
  e.kv.values[0] = bf16(1e30f);
  EXPECT_THAT(e.run().sensitivity, ElementsAre(0.0));
}

TEST(OracleSensitivity, TheOracleAloneGivesIt) {
  EXPECT_THAT(Even().run(Arithmetic::kRounded).sensitivity, IsEmpty());
  const Floats out({2, 1, 1, 2}, 1);
  const Floats lse({2, 1, 1}, 1);
  CombineCommon args;
  args.out_partials = out.view();
  args.lse_partials = lse.view();
  EXPECT_THAT(reference::combine(args, Arithmetic::kDouble).sensitivity, IsEmpty());
}

// The standard deviation of a weighted mean of the values whose weights are off by one percent each.
double tried_deviation(const std::vector<double>& weights, const std::vector<double>& values, double mean,
                       std::mt19937& generator) {
  constexpr int kTries = 200;
  std::normal_distribution<double> normal;
  double squares = 0;
  for (int i = 0; i < kTries; ++i) {
    double sum = 0;
    double weighted = 0;
    for (size_t k = 0; k < weights.size(); ++k) {
      const double w = weights[k] * (1 + 0.01 * normal(generator));
      sum += w;
      weighted += w * values[k];
    }
    squares += std::pow(weighted / sum - mean, 2);
  }
  return std::sqrt(squares / kTries);
}

// Many keys and heads, against the textbook formula and against weights that are really off.
TEST(OracleSensitivity, SaysHowFarTheOutputMoves) {
  constexpr int64_t kHeads = 3;
  constexpr int64_t kKeys = 37;
  constexpr int64_t kDim = 24;
  constexpr size_t kValues = 16;
  Bf16 q({1, kHeads, kDim});
  Bf16 kv({kKeys, 1, kDim});
  Ints indices({1, 1, kKeys});
  std::iota(indices.values.begin(), indices.values.end(), 0);
  fill_random(q, 1);
  fill_random(kv, 2, 0.7f);
  SparsePrefillFwdArgs args;
  args.q = q.view();
  args.kv = kv.view();
  args.indices = indices.view();
  args.d_v = kValues;
  args.softmax_scale = 0.5f;
  const AttentionResult result = attention(args, Arithmetic::kDouble);
  std::mt19937 generator(3);
  for (size_t h = 0; h < kHeads; ++h) {
    const std::vector<double> query = values_of(q, {0, static_cast<int64_t>(h)}, kDim);
    std::vector<double> weights;
    for (int64_t k = 0; k < kKeys; ++k) {
      const std::vector<double> key = values_of(kv, {k}, kDim);
      const double score = 0.5 * std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
      weights.push_back(std::exp(score - result.lse[h]));
    }
    double largest = 0;
    for (size_t c = 0; c < kValues; ++c) {
      const double out = result.out[h * kValues + c];
      std::vector<double> values;
      double squares = 0;
      for (int64_t k = 0; k < kKeys; ++k) {
        values.push_back(values_of(kv, {k}, kDim)[c]);
        squares += std::pow(weights[static_cast<size_t>(k)] * (values.back() - out), 2);
      }
      const double deviation = std::sqrt(squares);
      EXPECT_NEAR(tried_deviation(weights, values, out, generator), 0.01 * deviation, 0.0025 * deviation);
      largest = std::max(largest, deviation);
    }
    EXPECT_NEAR(result.sensitivity[h], largest, 1e-5 * largest);
  }
}

}  // namespace
}  // namespace tilewise::oracle_self
