// The tolerance of gradients: what it lets pass and what not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "reference/gradient_bound.h"
#include "reference/training.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::compare_gradient;
using reference::Comparison;
using reference::GradientTensor;
using reference::kCosine;
using reference::OutputType;
using ::testing::HasSubstr;

// Random values, and `rounded` that is off by a relative error of about `level`.
struct Pair {
  GradientTensor oracle;
  GradientTensor rounded;
  std::vector<float> actual;

  explicit Pair(double level, int64_t rows = 100) {
    std::mt19937 generator(1);
    std::normal_distribution<double> normal;
    oracle.row_length = rounded.row_length = 8;
    for (int64_t i = 0; i < rows * 8; ++i) {
      oracle.values.push_back(normal(generator));
      rounded.values.push_back(oracle.values.back() * (1 + level * normal(generator)));
    }
    oracle.reached.assign(static_cast<size_t>(rows), 1);
    rounded.reached = oracle.reached;
  }
  // The error of `rounded`, `factor` times.
  Comparison compare(double factor, double cosine = kCosine) {
    actual.clear();
    for (size_t i = 0; i < oracle.values.size(); ++i) {
      const double error = rounded.values[i] - oracle.values[i];
      actual.push_back(static_cast<float>(oracle.values[i] + factor * error));
    }
    return compare_gradient(actual, oracle, rounded, OutputType::kFP32, cosine);
  }
};

TEST(GradientBound, AllowsOneAndAHalfTimesTheErrorOfRounded) {
  Pair pair(1e-3);
  EXPECT_TRUE(pair.compare(0).ok);
  EXPECT_TRUE(pair.compare(1.49).ok);
  const Comparison over = pair.compare(1.51);
  EXPECT_FALSE(over.ok);
  EXPECT_NEAR(over.worst_ratio, 1.51 / 1.5, 1e-3);
  EXPECT_THAT(over.where, HasSubstr("relative error"));
}

TEST(GradientBound, CountsTheRoundingOfTheOutput) {
  Pair pair(0);
  for (size_t i = 0; i < pair.oracle.values.size(); ++i) {
    pair.actual.push_back(bf16_bits_to_f32(bf16(static_cast<float>(pair.oracle.values[i]))));
  }
  const auto compare = [&](OutputType type) {
    return compare_gradient(pair.actual, pair.oracle, pair.rounded, type, kCosine).ok;
  };
  EXPECT_TRUE(compare(OutputType::kBF16));
  EXPECT_FALSE(compare(OutputType::kFP16));
  EXPECT_FALSE(compare(OutputType::kFP32));
}

TEST(GradientBound, AsksForTheDirection) {
  Pair pair(0.02);  // a cosine of 1 - 2e-4
  const Comparison found = pair.compare(1);
  EXPECT_FALSE(found.ok);
  EXPECT_THAT(found.where, HasSubstr("cosine"));
  EXPECT_TRUE(pair.compare(1, 0.999).ok);
}

TEST(GradientBound, ADrawMayBeLuckyInRounded) {
  Pair pair(1e-3);
  pair.rounded.values = pair.oracle.values;
  pair.actual.assign(pair.oracle.values.begin(), pair.oracle.values.end());
  pair.actual[3] += 0.01f;
  const auto ok = [&] {
    return compare_gradient(pair.actual, pair.oracle, pair.rounded, OutputType::kFP32, kCosine).ok;
  };
  EXPECT_FALSE(ok());
  pair.oracle.draw = 0.006;
  EXPECT_FALSE(ok());
  pair.oracle.draw = 0.007;
  EXPECT_TRUE(ok());
}

TEST(GradientBound, NoiseIsWhatIsLeftOfAGradientThatCancels) {
  Pair pair(0);
  std::fill(pair.oracle.values.begin(), pair.oracle.values.end(), 0.0);
  pair.rounded.values = pair.oracle.values;
  pair.actual.assign(pair.oracle.values.size(), 1e-7f);
  const auto ok = [&] {
    return compare_gradient(pair.actual, pair.oracle, pair.rounded, OutputType::kFP32, kCosine).ok;
  };
  EXPECT_FALSE(ok());
  pair.oracle.noise = 1e-7 * std::sqrt(800.0) / 2;
  EXPECT_FALSE(ok());
  pair.oracle.noise = 1e-7 * std::sqrt(800.0) * 1.01;
  EXPECT_TRUE(ok());
}

TEST(GradientBound, RowsThatNothingReachesAreExactlyZero) {
  Pair pair(1e-3);
  pair.oracle.reached[2] = 0;
  std::fill_n(pair.oracle.values.begin() + 16, 8, 0.0);
  std::fill_n(pair.rounded.values.begin() + 16, 8, 0.0);
  EXPECT_TRUE(pair.compare(1).ok);
  pair.actual[17] = 1e-30f;
  const Comparison found =
      compare_gradient(pair.actual, pair.oracle, pair.rounded, OutputType::kFP32, kCosine);
  EXPECT_FALSE(found.ok);
  EXPECT_THAT(found.where, HasSubstr("row 2, column 1: got 1e-30, expected 0"));
}

TEST(GradientBound, NanAndInfinityMustBeInTheirPlaces) {
  Pair pair(1e-3);
  pair.compare(1);
  const auto ok = [&](size_t i, float actual, double oracle, double rounded) {
    Pair other = pair;
    other.actual[i] = actual;
    other.oracle.values[i] = oracle;
    other.rounded.values[i] = rounded;
    return compare_gradient(other.actual, other.oracle, other.rounded, OutputType::kFP32, kCosine).ok;
  };
  const double nan = std::nan("");
  EXPECT_TRUE(ok(5, NAN, nan, nan));
  EXPECT_FALSE(ok(5, 1, nan, nan));
  EXPECT_FALSE(ok(5, NAN, 1, 1));
  EXPECT_FALSE(ok(5, NAN, 1, nan));
  EXPECT_TRUE(ok(5, HUGE_VALF, kInf, kInf));
  EXPECT_FALSE(ok(5, -HUGE_VALF, kInf, kInf));
  EXPECT_TRUE(ok(5, HUGE_VALF, 1e39, 1e39));
  EXPECT_FALSE(ok(5, HUGE_VALF, 1, 1));
}

TEST(GradientBound, SizesMustAgree) {
  Pair pair(1e-3);
  pair.compare(1);
  pair.actual.pop_back();
  EXPECT_THROW(compare_gradient(pair.actual, pair.oracle, pair.rounded, OutputType::kFP32, kCosine),
               std::invalid_argument);
}

// Gradients of random bfloat16 data in the arithmetic of a good kernel are within their own bound with room
// for another order of sums; without dS' delta they are not.
TEST(GradientBound, OfRandomAttention) {
  Bf16 q({24, 4, 192}), k({40, 2, 192}), v({40, 2, 128}), d_out({24, 4, 128});
  fill_random(q, 1);
  fill_random(k, 2);
  fill_random(v, 3);
  fill_random(d_out, 4);
  const Ints cu_q = ints({2}, {0, 24});
  const Ints cu_k = ints({2}, {0, 40});
  DensePrefillFwdArgs forward;
  forward.q = q.view();
  forward.k = k.view();
  forward.v = v.view();
  forward.cu_seqlens_q = cu_q.view();
  forward.cu_seqlens_k = cu_k.view();
  forward.max_seqlen_q = forward.max_seqlen_k = 40;
  forward.softmax_scale = 0.07f;
  const auto result = training_forward(forward, reference::Arithmetic::kDouble);
  Bf16 out({24, 4, 128});
  std::transform(result.out.begin(), result.out.end(), out.values.begin(),
                 [](double x) { return bf16(static_cast<float>(x)); });
  Floats lse({24, 4});
  lse.values.assign(result.lse.begin(), result.lse.end());
  DensePrefillBwdArgs args;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.cu_seqlens_q = forward.cu_seqlens_q;
  args.cu_seqlens_k = forward.cu_seqlens_k;
  args.max_seqlen_q = args.max_seqlen_k = 40;
  args.softmax_scale = forward.softmax_scale;
  args.d_out = d_out.view();
  args.out = out.view();
  args.lse = lse.view();
  const auto oracle = training_backward(args, reference::Arithmetic::kDouble);
  const auto rounded = training_backward(args, reference::Arithmetic::kRounded);
  std::fill(out.values.begin(), out.values.end(), uint16_t{0});
  const auto wrong = training_backward(args, reference::Arithmetic::kRounded);

  const auto compare = [&](const GradientTensor& actual, const GradientTensor& expected,
                           const GradientTensor& by_rounded) {
    std::vector<float> values;
    for (const double x : actual.values) {
      values.push_back(bf16_bits_to_f32(bf16(static_cast<float>(x))));
    }
    return compare_gradient(values, expected, by_rounded, OutputType::kBF16, kCosine);
  };
  EXPECT_NEAR(compare(rounded.dq, oracle.dq, rounded.dq).worst_ratio, 1 / 1.5, 0.02);
  EXPECT_NEAR(compare(rounded.dk, oracle.dk, rounded.dk).worst_ratio, 1 / 1.5, 0.02);
  EXPECT_NEAR(compare(rounded.dv, oracle.dv, rounded.dv).worst_ratio, 1 / 1.5, 0.02);
  EXPECT_FALSE(compare(wrong.dq, oracle.dq, rounded.dq).ok);
  EXPECT_FALSE(compare(wrong.dk, oracle.dk, rounded.dk).ok);
  EXPECT_TRUE(compare(wrong.dv, oracle.dv, rounded.dv).ok);
}

}  // namespace
}  // namespace tilewise::oracle_self
