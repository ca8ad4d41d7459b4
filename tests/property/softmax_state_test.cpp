// The softmax state against sums in double over all scores at once: any cut into tiles and parts, sinks,
// partial results, and the rows that have no value.
#include "softmax/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tilewise::softmax {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

double log_sum_exp(const std::vector<float>& scores) {
  double max = -kInfinity;
  for (const float s : scores) max = std::max(max, static_cast<double>(s));
  if (max == -kInfinity) return max;
  double sum = 0;
  for (const float s : scores) sum += std::exp(s - max);
  return max + std::log(sum);
}

// A few roundings of the result, and of sums whose parts are at most 1.
void expect_lse(float actual, double expected) {
  EXPECT_NEAR(actual, expected, 2e-6 + std::abs(expected) * 1.2e-7);
}

// As a kernel does it: the maximum of a tile first, then its weights. `out` is the sum of weight * value.
struct Row {
  RowState state;
  float out = 0;

  void visit(const std::vector<float>& scores, const std::vector<float>& values, size_t begin, size_t end) {
    float max = state.max;
    for (size_t i = begin; i < end; ++i) max = larger_score(max, scores[i]);
    out *= state.rescale(max);
    for (size_t i = begin; i < end; ++i) {
      const float weight = std::exp(scores[i] - safe_max(max));
      state.sum += weight;
      out += weight * values[i];
    }
  }
};

std::vector<float> random_scores(std::mt19937& random, size_t n, float centre) {
  std::normal_distribution<float> normal(centre, std::uniform_real_distribution<float>(0.1F, 20)(random));
  std::vector<float> scores(n);
  for (float& s : scores)
    s = std::uniform_int_distribution<int>(0, 9)(random) == 0 ? -kInfinity : normal(random);
  return scores;
}

double expected_out(const std::vector<float>& scores, const std::vector<float>& values, double lse) {
  double out = 0;
  for (size_t i = 0; i < scores.size(); ++i) out += std::exp(scores[i] - lse) * values[i];
  return out;
}

TEST(softmax_state, tiles_and_merged_parts_give_the_whole) {
  std::mt19937 random(41);
  std::uniform_real_distribution<float> value(-1, 1);
  for (const float centre : {-2.45e5F, -150.0F, -120.0F, 0.0F, 200.0F}) {
    for (size_t n = 1; n < 150; ++n) {
      SCOPED_TRACE(testing::Message() << n << " scores near " << centre);
      std::vector<float> scores = random_scores(random, n, centre);
      scores[n / 2] = centre;  // never all -inf
      std::vector<float> values(n);
      for (float& v : values) v = value(random);
      const double lse = log_sum_exp(scores);
      const double out = expected_out(scores, values, lse);
      const float max = *std::max_element(scores.begin(), scores.end());

      const auto cut = [&](size_t from) { return std::uniform_int_distribution<size_t>(from, n)(random); };
      Row parts[2];
      const size_t middle = cut(0);
      for (size_t begin = 0; begin < n;) {
        const size_t limit = begin < middle ? middle : n;
        const size_t end = std::min(cut(begin), limit);
        parts[begin < middle ? 0 : 1].visit(scores, values, begin, end);
        begin = end;
      }
      const Merged merged = merge(parts[0].state, parts[1].state);
      const RowResult result = finish(merged.state);
      EXPECT_EQ(result.max_logit, max);
      expect_lse(result.lse, lse);
      EXPECT_NEAR((parts[0].out * merged.weight_a + parts[1].out * merged.weight_b) * result.scale, out,
                  3e-6);

      const Merged swapped = merge(parts[1].state, parts[0].state);
      EXPECT_EQ(swapped.state.max, merged.state.max);
      EXPECT_EQ(swapped.weight_a, merged.weight_b);
      EXPECT_FLOAT_EQ(swapped.state.sum, merged.state.sum);
    }
  }
}

TEST(softmax_state, scores_one_by_one_give_the_whole) {
  std::mt19937 random(42);
  for (size_t n = 1; n < 200; ++n) {
    std::vector<float> scores = random_scores(random, n, 3);
    scores[0] = 1;
    RowState state;
    for (const float s : scores) {
      const RowState before = state;
      const float factor = state.add(s);
      EXPECT_EQ(factor, rescale_factor(before.max, state.max));
    }
    expect_lse(finish(state).lse, log_sum_exp(scores));
  }
}

TEST(softmax_state, a_row_without_weight_is_lonely) {
  Row only_minus_inf;
  only_minus_inf.visit({-kInfinity, -kInfinity}, {1, 2}, 0, 2);
  const RowState lonely[] = {RowState{}, only_minus_inf.state, merge(RowState{}, only_minus_inf.state).state};
  for (const RowState& state : lonely) {
    EXPECT_TRUE(is_lonely(state));
    const RowResult result = finish(state);
    EXPECT_EQ(result.lse, kInfinity);
    EXPECT_EQ(result.max_logit, -kInfinity);
    EXPECT_EQ(result.scale, 0.0F);
  }
  EXPECT_EQ(only_minus_inf.out, 0.0F);
  // Beside a row with weight it changes nothing.
  const RowState some{2.0F, 3.0F};
  const Merged merged = merge(RowState{}, some);
  EXPECT_EQ(merged.weight_a, 0.0F);
  EXPECT_EQ(merged.weight_b, 1.0F);
  EXPECT_EQ(merged.state.max, 2.0F);
  EXPECT_EQ(merged.state.sum, 3.0F);
}

TEST(softmax_state, masked_tiles_before_the_first_score_leave_nothing_behind) {
  Row row;
  row.visit({-kInfinity}, {5}, 0, 1);
  row.visit({-1e30F}, {5}, 0, 1);
  EXPECT_EQ(row.state.sum, 1.0F);
  EXPECT_EQ(row.out, 5.0F);
  EXPECT_EQ(finish(row.state).lse, -1e30F);
}

TEST(softmax_state, nan_stays_nan_wherever_it_comes_in) {
  for (size_t place = 0; place < 4; ++place) {
    std::vector<float> scores = {1, 2, -kInfinity, 3};
    scores[place] = kNan;
    for (const size_t tile : {1U, 2U, 4U}) {
      Row row;
      for (size_t begin = 0; begin < 4; begin += tile) row.visit(scores, {1, 1, 1, 1}, begin, begin + tile);
      const RowResult result = finish(row.state);
      EXPECT_TRUE(std::isnan(result.lse));
      EXPECT_TRUE(std::isnan(result.max_logit));
      EXPECT_TRUE(std::isnan(result.scale));
      EXPECT_TRUE(std::isnan(row.out));
      EXPECT_TRUE(std::isnan(finish(merge(row.state, RowState{1, 1}).state).lse));
      EXPECT_TRUE(std::isnan(finish(merge(RowState{}, row.state).state).lse));
      EXPECT_TRUE(std::isnan(finish_with_sink_bias(row.state, 1).lse));
      EXPECT_TRUE(std::isnan(finish_with_sink_bias(row.state, 1).scale));
    }
  }
  // All keys NaN is not lonely, not even where a maximum dropped the NaN.
  const RowResult lost = finish({-kInfinity, kNan});
  EXPECT_TRUE(std::isnan(lost.lse));
  EXPECT_EQ(lost.max_logit, -kInfinity);
  EXPECT_FALSE(is_lonely(RowState{kNan, kNan}));
  EXPECT_FALSE(is_lonely(RowState{kNan, 0}));
  EXPECT_TRUE(std::isnan(finish({kNan, 0}).scale));
  EXPECT_TRUE(std::isnan(larger_score(kNan, 1)) && std::isnan(larger_score(1, kNan)));
}

TEST(softmax_state, a_score_of_plus_inf_has_a_maximum_alone) {
  for (const std::vector<float>& scores :
       {std::vector<float>{1, kInfinity, 2}, {kInfinity, 1, 1}, {1, 1, kInfinity}}) {
    for (const size_t tile : {1U, 3U}) {
      Row row;
      for (size_t begin = 0; begin < 3; begin += tile) row.visit(scores, {1, 1, 1}, begin, begin + tile);
      for (const RowState& state : {row.state, merge(row.state, RowState{1, 1}).state,
                                    merge(RowState{}, row.state).state, RowState{kInfinity, 1}}) {
        const RowResult result = finish(state);
        EXPECT_TRUE(std::isnan(result.lse));
        EXPECT_TRUE(std::isnan(result.scale));
        EXPECT_EQ(result.max_logit, kInfinity);
        EXPECT_TRUE(std::isnan(finish_with_sink_bias(state, 0).lse));
        EXPECT_EQ(finish_with_sink_bias(state, 0).max_logit, kInfinity);
      }
    }
  }
}

TEST(softmax_state, a_sink_bias_is_one_more_score_without_value) {
  std::mt19937 random(43);
  for (const float centre : {-2.45e5F, -120.0F, 0.0F, 200.0F}) {
    for (const float beside : {-1e38F, -200.0F, -30.0F, -1.0F, 0.0F, 1.0F, 30.0F, 200.0F, 1e38F}) {
      SCOPED_TRACE(testing::Message() << "scores near " << centre << ", sink " << beside << " above");
      std::vector<float> scores = random_scores(random, 40, centre);
      scores[0] = centre;
      const std::vector<float> values(40, 1);
      const float sink = centre + beside;
      Row row;
      row.visit(scores, values, 0, 40);
      std::vector<float> joined = scores;
      joined.push_back(sink);
      const double lse = log_sum_exp(joined);
      const RowResult result = finish_with_sink_bias(row.state, sink);
      expect_lse(result.lse, lse);
      EXPECT_EQ(result.max_logit, row.state.max);
      EXPECT_NEAR(row.out * result.scale, expected_out(scores, values, lse), 3e-6);
    }
  }
}

TEST(softmax_state, a_sink_bias_at_the_ends_of_the_range) {
  const RowState state{3, 2};
  const RowResult without = finish(state);
  const RowResult none = finish_with_sink_bias(state, -kInfinity);
  EXPECT_EQ(none.lse, without.lse);
  EXPECT_EQ(none.scale, without.scale);
  const RowResult low = finish_with_sink_bias(state, -kLargest);
  EXPECT_EQ(low.lse, without.lse);
  EXPECT_EQ(low.scale, without.scale);
  for (const float sink : {kLargest, kInfinity}) {
    const RowResult all = finish_with_sink_bias(state, sink);
    EXPECT_EQ(all.lse, sink);
    EXPECT_EQ(all.scale, 0.0F);
    EXPECT_EQ(all.max_logit, 3.0F);
    EXPECT_EQ(finish_with_sink_bias({-kLargest, 1}, sink).lse, sink);
  }
  // A lonely row has the sink alone, or is lonely still.
  for (const float sink : {-kLargest, -3.0F, 0.0F, kLargest, kInfinity, -kInfinity}) {
    const RowResult alone = finish_with_sink_bias(RowState{}, sink);
    EXPECT_EQ(alone.lse, sink == -kInfinity ? kInfinity : sink);
    EXPECT_EQ(alone.scale, 0.0F);
    EXPECT_EQ(alone.max_logit, -kInfinity);
  }
}

TEST(softmax_state, the_probability_of_a_sink) {
  const RowState state{1.5F, 4};
  for (const float sink : {-5.0F, 0.0F, 2.5F, 40.0F}) {
    const double whole = 4 * std::exp(1.5) + std::exp(static_cast<double>(sink));
    EXPECT_NEAR(sink_bias_probability(sink, finish_with_sink_bias(state, sink).lse), std::exp(sink) / whole,
                4e-6);
  }
  EXPECT_EQ(sink_bias_probability(-kInfinity, 1), 0.0F);
  EXPECT_EQ(sink_bias_probability(-kInfinity, kInfinity), 0.0F);
  EXPECT_EQ(sink_bias_probability(kInfinity, kInfinity), 0.0F);
  EXPECT_EQ(sink_bias_probability(-7, -7), 1.0F);
  EXPECT_EQ(sink_bias_probability(kLargest, kLargest), 1.0F);
  EXPECT_EQ(sink_bias_probability(-kLargest, kLargest), 0.0F);
  EXPECT_TRUE(std::isnan(sink_bias_probability(1, kNan)));
}

TEST(softmax_state, a_sink_scales_the_output) {
  for (const float lse : {-2.45e5F, -150.0F, -3.0F, 0.0F, 10.0F, 2e5F}) {
    for (const float beside : {-90.0F, -20.0F, -1.0F, 0.0F, 1.0F, 20.0F, 80.0F}) {
      const float sink = lse + beside;
      const double expected = 1 / (1 + std::exp(static_cast<double>(sink) - lse));
      EXPECT_NEAR(sink_factor(lse, sink), expected, 1e-6 * expected) << "lse " << lse << " sink " << sink;
    }
    EXPECT_EQ(sink_factor(lse, -kInfinity), 1.0F);
    EXPECT_EQ(sink_factor(lse, -kLargest), 1.0F);
    EXPECT_EQ(sink_factor(lse, kLargest), 0.0F);
    EXPECT_EQ(sink_factor(lse, kInfinity), 0.0F);
  }
  EXPECT_EQ(sink_factor(kLargest, -kLargest), 1.0F);
  EXPECT_EQ(sink_factor(-kLargest, kLargest), 0.0F);
  for (const float lonely : {kInfinity, -kInfinity}) {
    for (const float sink : {-kInfinity, -kLargest, 0.0F, kLargest, kInfinity}) {
      EXPECT_EQ(0.0F * sink_factor(lonely, sink), 0.0F);
    }
  }
  for (const float sink : {-kInfinity, 0.0F, kInfinity}) EXPECT_TRUE(std::isnan(sink_factor(kNan, sink)));
}

TEST(softmax_state, both_sinks_leave_the_same_output) {
  const RowState state{-2, 5};
  for (const float sink : {-30.0F, -2.0F, 0.0F, 9.0F}) {
    const RowResult plain = finish(state);
    EXPECT_NEAR(plain.scale * sink_factor(plain.lse, sink), finish_with_sink_bias(state, sink).scale, 1e-7);
  }
}

TEST(softmax_state, lse_converts_between_bases) {
  for (const float lse : {-2.45e5F, -1.0F, 0.0F, 0.5F, 300.0F}) {
    EXPECT_NEAR(lse_to_base2(lse), lse / std::log(2.0), 2e-7 * std::abs(lse));
    EXPECT_NEAR(lse_from_base2(lse), lse * std::log(2.0), 2e-7 * std::abs(lse));
  }
  for (const float end : {kInfinity, -kInfinity}) {
    EXPECT_EQ(lse_to_base2(end), end);
    EXPECT_EQ(lse_from_base2(end), end);
  }
  EXPECT_TRUE(std::isnan(lse_to_base2(kNan)) && std::isnan(lse_from_base2(kNan)));
}

TEST(softmax_state, partial_results_merge_by_weight) {
  std::mt19937 random(44);
  for (const LogBase base : {LogBase::kE, LogBase::kTwo}) {
    const double unit = base == LogBase::kE ? 1 : std::log(2.0);
    for (const float centre : {-2.45e5F, -120.0F, 0.0F, 200.0F}) {
      for (size_t n = 1; n < 40; ++n) {
        SCOPED_TRACE(testing::Message() << n << " parts near " << centre);
        std::vector<float> lse = random_scores(random, n, centre);
        for (float& l : lse) l = l == -kInfinity && random() % 2 == 0 ? kInfinity : l;
        lse[n - 1] = centre;
        PartialState state;
        for (const float l : lse) add_partial(state, l, base);
        // Empty parts fall out of the sum, the others count in natural units.
        std::vector<double> natural;
        for (const float l : lse) natural.push_back(std::isinf(l) ? -kInfinity : l * unit);
        const double max = *std::max_element(natural.begin(), natural.end());
        double sum = 0;
        for (const double l : natural) sum += std::exp(l - max);
        expect_lse(static_cast<float>(merged_lse(state, base)), max + std::log(sum));
        double all = 0;
        for (size_t i = 0; i < n; ++i) {
          const double expected = std::exp(natural[i] - max) / sum;
          EXPECT_NEAR(partial_weight(state, lse[i], base), expected, 1e-5 * expected + 1e-30);
          all += partial_weight(state, lse[i], base);
        }
        EXPECT_NEAR(all, 1, 1e-6);
      }
    }
  }
}

TEST(softmax_state, empty_and_nan_partial_results) {
  for (const LogBase base : {LogBase::kE, LogBase::kTwo}) {
    const double unit = base == LogBase::kE ? 1 : std::log(2.0);
    PartialState empty;
    add_partial(empty, -kInfinity, base);
    add_partial(empty, kInfinity, base);
    EXPECT_EQ(merged_lse(empty, base), kInfinity);
    EXPECT_EQ(partial_weight(empty, -kInfinity, base), 0.0F);
    EXPECT_EQ(partial_weight(empty, kInfinity, base), 0.0F);

    PartialState single;
    add_partial(single, kInfinity, base);
    add_partial(single, -3.25F, base);
    EXPECT_DOUBLE_EQ(merged_lse(single, base), -3.25 * unit);
    EXPECT_EQ(partial_weight(single, -3.25F, base), 1.0F);
    EXPECT_EQ(partial_weight(single, kInfinity, base), 0.0F);

    PartialState far_apart;
    add_partial(far_apart, -kLargest, base);
    add_partial(far_apart, kLargest, base);
    EXPECT_DOUBLE_EQ(merged_lse(far_apart, base), kLargest * unit);
    EXPECT_EQ(partial_weight(far_apart, -kLargest, base), 0.0F);
    EXPECT_EQ(partial_weight(far_apart, kLargest, base), 1.0F);

    for (const float other : {-kInfinity, 0.0F, kInfinity}) {
      PartialState poisoned;
      add_partial(poisoned, kNan, base);
      add_partial(poisoned, other, base);
      EXPECT_TRUE(std::isnan(merged_lse(poisoned, base)));
      EXPECT_TRUE(std::isnan(partial_weight(poisoned, kNan, base)));
      PartialState later;
      add_partial(later, other, base);
      add_partial(later, kNan, base);
      EXPECT_TRUE(std::isnan(merged_lse(later, base)));
    }
  }
}

}  // namespace
}  // namespace tilewise::softmax
