// The tolerance: its size, and that comparisons fail where they must.
#include "reference/bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/views.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::compare_logs;
using reference::compare_rows;
using reference::Comparison;
using reference::OutputType;
using reference::row_bounds;
using reference::ulp;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsNan;
using Doubles = std::vector<double>;
using Singles = std::vector<float>;

TEST(OracleBound, Ulps) {
  EXPECT_EQ(ulp(1, OutputType::kBF16), 0x1p-7);
  EXPECT_EQ(ulp(1.99, OutputType::kBF16), 0x1p-7);
  EXPECT_EQ(ulp(0.99, OutputType::kBF16), 0x1p-8);
  EXPECT_EQ(ulp(300, OutputType::kFP16), 0x1p-2);
  EXPECT_EQ(ulp(1, OutputType::kFP32), 0x1p-23);
  EXPECT_EQ(ulp(0, OutputType::kBF16), 0x1p-133);
  EXPECT_EQ(ulp(1e-300, OutputType::kFP16), 0x1p-24);
  EXPECT_EQ(ulp(0, OutputType::kFP32), 0x1p-149);
}

TEST(OracleBound, TwiceTheRoundedErrorAndAnUlpOfTheLargest) {
  const Doubles oracle = {1, -5, 0.25};
  const Doubles rounded = {1.01, -5, 0.23};
  const double bound = 2 * 0.02 + 0x1p-5;
  EXPECT_THAT(row_bounds(oracle, rounded, {}, 3, OutputType::kBF16), ElementsAre(DoubleNear(bound, 1e-12)));
  const float inside = static_cast<float>(1 + 0.999 * bound);
  const float outside = static_cast<float>(1 - 1.001 * bound);
  const Comparison good = compare_rows(Singles{inside, -5, 0.25f}, oracle, rounded, {}, 3, OutputType::kBF16);
  EXPECT_TRUE(good.ok);
  EXPECT_NEAR(good.worst_ratio, 0.999, 1e-4);
  EXPECT_NEAR(good.bound_at_worst, bound, 1e-12);
  EXPECT_NEAR(good.max_error, 0.999 * bound, 1e-6);
  const Comparison bad = compare_rows(Singles{outside, -5, 0.25f}, oracle, rounded, {}, 3, OutputType::kBF16);
  EXPECT_FALSE(bad.ok);
  EXPECT_GT(bad.worst_ratio, 1);
  EXPECT_THAT(bad.where, ::testing::StartsWith("row 0, column 0: got 0.9"));
}

TEST(OracleBound, EveryRowHasItsOwnBound) {
  const Doubles oracle = {100, 100, 1, 1};
  const Singles actual = {100.3f, 100, 1.3f, 1};  // an ulp of bfloat16 is 0.5 at 100
  EXPECT_TRUE(compare_rows(std::span(actual).first(2), std::span(oracle).first(2), std::span(oracle).first(2),
                           {}, 2, OutputType::kBF16)
                  .ok);
  const Comparison found = compare_rows(actual, oracle, oracle, {}, 2, OutputType::kBF16);
  EXPECT_FALSE(found.ok);
  EXPECT_THAT(found.where, ::testing::StartsWith("row 1, column 0"));
}

// Five rows of two values with the sensitivities 3, 4, 12, 0 and 1, and errors of `rounded` of 5, 0, 12, 1
// and 0: the level is sqrt((25 + 144) / (9 + 16 + 144 + 1)), a little below 1. All of it is 2^-10 times as
// large.
struct Leveled {
  static constexpr double kUnit = 0x1p-10;
  Doubles oracle = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  Doubles rounded = {1 - 5 * kUnit, 1, 1, 1, 1, 1 + 12 * kUnit, 1 + kUnit, 1 - kUnit, 1, 1};
  Doubles sensitivity = {3 * kUnit, 4 * kUnit, 12 * kUnit, 0, kUnit};
  double level = std::sqrt(169.0 / 170.0);

  Doubles bounds() const { return row_bounds(oracle, rounded, sensitivity, 2, OutputType::kFP32); }
  // With an error of so many units in the second value of a row.
  Comparison with_error(size_t row, double units) const {
    Doubles actual = oracle;
    actual[2 * row + 1] += units * kUnit;
    return compare_rows(actual, oracle, rounded, sensitivity, 2, OutputType::kFP32);
  }
};

TEST(OracleBound, ALuckyRowIsMeasuredByTheLevelOfAll) {
  const Leveled l;
  const double ulp_of_1 = 0x1p-23;
  const auto twice = [&](double units) { return DoubleNear(2 * units * Leveled::kUnit + ulp_of_1, 1e-12); };
  EXPECT_THAT(l.bounds(), ElementsAre(twice(5), twice(4 * l.level), twice(12), twice(1), twice(l.level)));
  // The second row's `rounded` happens to be exact; twice the level times its sensitivity is 7.97 units.
  EXPECT_TRUE(l.with_error(1, 7.9).ok);
  EXPECT_FALSE(compare_rows(Doubles{1, 1 + 7.9 * Leveled::kUnit}, Doubles{1, 1}, Doubles{1, 1}, {}, 2,
                            OutputType::kFP32)
                   .ok);
  EXPECT_FALSE(l.with_error(1, 8).ok);
}

TEST(OracleBound, ThreeTimesTheLevelInOneRowFails) {
  const Leveled l;
  EXPECT_FALSE(l.with_error(1, 3 * 4 * l.level).ok);
  EXPECT_THAT(l.with_error(1, 3 * 4 * l.level).where, ::testing::StartsWith("row 1, column 1"));
  EXPECT_FALSE(l.with_error(4, 3 * l.level).ok);
  // In many rows of equal sensitivity and error as well, where the level is that error.
  const Doubles oracle(100, 1);
  const Doubles rounded(100, 1 + 0x1p-6);
  Doubles actual = oracle;
  actual[57] += 3 * 0x1p-6;
  const Comparison found = compare_rows(actual, oracle, rounded, Doubles(100, 0.5), 1, OutputType::kFP32);
  EXPECT_FALSE(found.ok);
  EXPECT_NEAR(found.worst_ratio, 1.5, 1e-4);
}

TEST(OracleBound, ARowOfOneKeyGetsNoLooser) {
  const Leveled l;
  const double own = 2 * Leveled::kUnit + 0x1p-23;  // the fourth row: no sensitivity, an error of one unit
  EXPECT_DOUBLE_EQ(l.bounds()[3], own);
  EXPECT_DOUBLE_EQ(row_bounds(l.oracle, l.rounded, {}, 2, OutputType::kFP32)[3], own);
  EXPECT_FALSE(l.with_error(3, 2.01).ok);
  // Nor does its error count for the others.
  Leveled worse;
  worse.rounded[6] = 50;
  EXPECT_DOUBLE_EQ(worse.bounds()[1], l.bounds()[1]);
}

TEST(OracleBound, NoSensitivityLeavesEachRowItsOwnError) {
  Leveled l;
  l.sensitivity.assign(5, 0.0);
  EXPECT_EQ(l.bounds(), row_bounds(l.oracle, l.rounded, {}, 2, OutputType::kFP32));
  EXPECT_DOUBLE_EQ(l.bounds()[1], 0x1p-23);
}

TEST(OracleBound, RowsThatAreNotFiniteHaveNoPartInTheLevel) {
  Leveled l;
  const Doubles before = l.bounds();
  l.oracle.insert(l.oracle.end(), {std::nan(""), 1, 1, 1});
  l.rounded.insert(l.rounded.end(), {std::nan(""), 9, 1, kInf});
  l.sensitivity.insert(l.sensitivity.end(), {1, 1});
  const Doubles after = l.bounds();
  EXPECT_EQ(Doubles(after.begin(), after.begin() + 5), before);
  EXPECT_THAT(Doubles(after.begin() + 5, after.end()), ElementsAre(IsNan(), IsNan()));
}

TEST(OracleBound, FailureIsKeptWhenALaterRowIsFine) {
  const Doubles oracle = {1, 1};
  EXPECT_FALSE(compare_rows(Singles{2, 1}, oracle, oracle, {}, 1, OutputType::kFP32).ok);
  EXPECT_FALSE(compare_rows(Singles{1, 2}, oracle, oracle, {}, 1, OutputType::kFP32).ok);
  EXPECT_TRUE(compare_rows(Singles{1, 1}, oracle, oracle, {}, 1, OutputType::kFP32).ok);
}

TEST(OracleBound, PlacesOfInfAndNan) {
  const double nan = std::nan("");
  const float nanf = std::nanf("");
  const float inf = static_cast<float>(kInf);
  const Doubles oracle = {1, nan, kInf, -kInf};
  const auto same = [&](const Singles& actual) {
    const bool rows = compare_rows(actual, oracle, oracle, {}, 4, OutputType::kBF16).ok;
    EXPECT_EQ(
        compare_rows(Doubles(actual.begin(), actual.end()), oracle, oracle, {}, 4, OutputType::kBF16).ok,
        rows);
    return rows;
  };
  EXPECT_TRUE(same({1, nanf, inf, -inf}));
  EXPECT_TRUE(same({50, nanf, inf, -inf}));  // magnitudes of such a row are not compared
  EXPECT_FALSE(same({nanf, nanf, inf, -inf}));
  EXPECT_FALSE(same({1, 1, inf, -inf}));
  EXPECT_FALSE(same({1, nanf, -inf, -inf}));
  EXPECT_FALSE(same({1, nanf, inf, nanf}));
  const Comparison found =
      compare_rows(Singles{1, 1}, Doubles{1, nan}, Doubles{1, nan}, {}, 2, OutputType::kBF16);
  EXPECT_EQ(found.worst_ratio, kInf);
  EXPECT_THAT(found.where, ::testing::StartsWith("row 0, column 1: got 1, expected nan"));
}

TEST(OracleBound, ARowWithoutABoundFails) {
  EXPECT_FALSE(compare_rows(Singles{1}, Doubles{1}, Doubles{kInf}, {}, 1, OutputType::kBF16).ok);
  EXPECT_FALSE(compare_rows(Singles{1}, Doubles{1}, Doubles{std::nan("")}, {}, 1, OutputType::kBF16).ok);
}

TEST(OracleBound, ValuesPastTheTypesRangeAreInfinite) {
  const float inf = static_cast<float>(kInf);
  EXPECT_TRUE(compare_rows(Singles{inf}, Doubles{65520}, Doubles{65520}, {}, 1, OutputType::kFP16).ok);
  EXPECT_TRUE(compare_rows(Singles{65504}, Doubles{65519}, Doubles{65519}, {}, 1, OutputType::kFP16).ok);
  EXPECT_TRUE(compare_rows(Singles{65504}, Doubles{65519}, Doubles{65519}, {}, 1, OutputType::kBF16).ok);
}

TEST(OracleBound, SizesMustAgree) {
  EXPECT_THROW(compare_rows(Singles{1, 2}, Doubles{1}, Doubles{1}, {}, 1, OutputType::kBF16),
               std::invalid_argument);
  EXPECT_THROW(compare_rows(Singles{1, 2}, Doubles{1, 2}, Doubles{1, 2}, Doubles{0}, 1, OutputType::kBF16),
               std::invalid_argument);
  EXPECT_THROW(compare_logs(Singles{1}, Doubles{1, 2}), std::invalid_argument);
}

TEST(OracleBound, LogsAreComparedOneByOne) {
  const double bound = 1e-5 + 4.0 / 65536 * 100;
  EXPECT_TRUE(compare_logs(Singles{static_cast<float>(100 + 0.99 * bound)}, Doubles{100}).ok);
  EXPECT_FALSE(compare_logs(Singles{static_cast<float>(100 + 1.01 * bound)}, Doubles{100}).ok);
  EXPECT_TRUE(compare_logs(Singles{9e-6f}, Doubles{0}).ok);
  EXPECT_FALSE(compare_logs(Singles{1.1e-5f}, Doubles{0}).ok);
  EXPECT_FALSE(compare_logs(Singles{100, 0.001f}, Doubles{100, 0}).ok);
  const float inf = static_cast<float>(kInf);
  EXPECT_TRUE(compare_logs(Singles{inf, -inf}, Doubles{kInf, -kInf}).ok);
  EXPECT_FALSE(compare_logs(Singles{inf}, Doubles{-kInf}).ok);
  EXPECT_FALSE(compare_logs(Singles{88}, Doubles{kInf}).ok);
  EXPECT_FALSE(compare_logs(Singles{inf}, Doubles{88}).ok);
  EXPECT_FALSE(compare_logs(Doubles{1}, Doubles{std::nan("")}).ok);
}

TEST(OracleBound, MergeKeepsTheWorst) {
  Comparison all;
  all.merge(compare_logs(Singles{1.00001f}, Doubles{1}), "lse");
  const double small = all.worst_ratio;
  all.merge(compare_logs(Singles{2}, Doubles{1}), "max_logits");
  EXPECT_FALSE(all.ok);
  EXPECT_GT(all.worst_ratio, small);
  EXPECT_EQ(all.where, "max_logits, row 0, column 0: got 2, expected 1");
  all.merge(compare_logs(Singles{1}, Doubles{1}), "out");
  EXPECT_FALSE(all.ok);
  EXPECT_EQ(all.where, "max_logits, row 0, column 0: got 2, expected 1");
}

TEST(OracleViews, ElementsInLogicalOrder) {
  Floats memory({2, 3, 4});
  for (size_t i = 0; i < 24; ++i) memory.values[i] = static_cast<float>(i);
  EXPECT_EQ(reference::to_floats(memory.view()), memory.values);
  const std::vector<int64_t> shape = {2, 2};
  const std::vector<int64_t> strides = {1, 12};
  EXPECT_THAT(reference::to_floats(TensorView(memory.values.data(), DType::kFP32, shape, strides)),
              ::testing::ElementsAre(0, 12, 1, 13));
  const std::vector<float> swapped = reference::heads_last(memory.view());
  for (size_t b = 0; b < 2; ++b) {
    for (size_t h = 0; h < 3; ++h) {
      for (size_t s = 0; s < 4; ++s)
        EXPECT_EQ(swapped[(b * 4 + s) * 3 + h], memory.values[(b * 3 + h) * 4 + s]);
    }
  }
  EXPECT_THROW(reference::to_floats(Ints({1}).view()), std::invalid_argument);
}

}  // namespace
}  // namespace tilewise::oracle_self
