// The scalars of an online softmax: rescale, merge, finish, sinks, partial results. Scores are natural
// logarithms. Exponentials and sums over a tile belong to the backends.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/host_device.h"
#include "core/numeric.h"

namespace tilewise::softmax {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr double kLn2Double = 0.693147180559945309;
inline constexpr float kLn2 = static_cast<float>(kLn2Double);
inline constexpr float kLog2e = 1.44269504088896341f;

// The larger of two scores; NaN when either is.
TW_HD constexpr float larger_score(float a, float b) { return a > b || f32_is_nan(a) ? a : b; }

// What scores are measured from: 0 for a row without scores, so that exp(-inf - safe_max) is 0 and not NaN.
TW_HD constexpr float safe_max(float max) { return max == -kInfinity ? 0.0f : max; }

// The factor for sums and outputs that were measured from old_max, once new_max >= old_max takes its place.
TW_HD inline float rescale_factor(float old_max, float new_max) {
  return std::exp(old_max - safe_max(new_max));
}

// The scores of one row so far: their maximum, and the sum of exp(score - safe_max(max)).
struct RowState {
  float max = -kInfinity;
  float sum = 0.0f;

  // Moves to a maximum that is not below the old one; returns the factor for the row's output.
  TW_HD float rescale(float new_max) {
    const float factor = rescale_factor(max, new_max);
    max = new_max;
    sum *= factor;
    return factor;
  }

  // One more score; returns the factor for the row's output. The score's own weight is exp(score - max).
  TW_HD float add(float score) {
    const float factor = rescale(larger_score(max, score));
    sum += std::exp(score - safe_max(max));
    return factor;
  }
};

struct Merged {
  RowState state;
  float weight_a = 0.0f;  // factors for the two outputs
  float weight_b = 0.0f;
};

TW_HD inline Merged merge(const RowState& a, const RowState& b) {
  const float max = larger_score(a.max, b.max);
  Merged merged;
  merged.weight_a = rescale_factor(a.max, max);
  merged.weight_b = rescale_factor(b.max, max);
  merged.state.max = max;
  merged.state.sum = a.sum * merged.weight_a + b.sum * merged.weight_b;
  return merged;
}

struct RowResult {
  float lse = kInfinity;
  float max_logit = -kInfinity;
  float scale = 0.0f;  // out = output of the state * scale
};

// The row has no score, or none above -inf. A NaN in the sum is not that.
TW_HD constexpr bool is_lonely(const RowState& state) { return state.max == -kInfinity && state.sum == 0.0f; }

// A NaN or +inf among the scores: neither lse nor output has a value. (A maximum may have lost the NaN.)
TW_HD constexpr bool is_poisoned(const RowState& state) {
  return !(state.max < kInfinity) || f32_is_nan(state.sum);
}

TW_HD inline RowResult finish(const RowState& state) {
  if (is_lonely(state)) return {kInfinity, -kInfinity, 0.0f};
  if (is_poisoned(state)) return {kNan, state.max, kNan};
  return {state.max + std::log(state.sum), state.max, 1.0f / state.sum};
}

// finish with one more logit that has no value (training): it takes part in lse and in the scale, not in
// max_logit. -inf changes nothing, +inf takes all the weight, a row without keys has the sink alone.
TW_HD inline RowResult finish_with_sink_bias(const RowState& state, float sink_bias) {
  if (sink_bias == -kInfinity) return finish(state);
  if (!is_lonely(state) && is_poisoned(state)) return {kNan, state.max, kNan};
  if (is_lonely(state) || sink_bias == kInfinity) return {sink_bias, state.max, 0.0f};
  RowState joined = state;
  const float weight = joined.add(sink_bias);
  return {joined.max + std::log(joined.sum), state.max, weight / joined.sum};
}

// The softmax probability of the sink, for its gradient. Where the sink is +inf every gradient of its head is
// 0.
TW_HD inline float sink_bias_probability(float sink_bias, float lse) {
  const bool infinite = sink_bias == kInfinity || sink_bias == -kInfinity;
  return infinite ? 0.0f : std::exp(sink_bias - lse);
}

// What a sink leaves of the output (inference): exp(lse) / (exp(lse) + exp(sink)). NaN only where lse or sink
// is. Real: float, or double where the factor joins weights in double.
template <class Real>
TW_HD inline Real sink_factor(Real lse, float sink) {
  if (lse != lse) return lse;
  if (sink == -kInfinity) return Real{1};
  if (sink == kInfinity) return Real{0};
  return Real{1} / (Real{1} + std::exp(sink - lse));
}

TW_HD constexpr float lse_to_base2(float lse) { return lse * kLog2e; }
TW_HD constexpr float lse_from_base2(float lse2) { return lse2 * kLn2; }

// Partial results, each normalised by its own sum, with an lse in base e or base 2. Their state counts in the
// same base; weights divide by the sum of all weights instead of using exp(lse_i - lse), because a large lse
// has too few digits left for weights that add up to 1. In double: there are few weights, and a merged fp32
// result should be wrong by its last rounding only.
enum class LogBase : int32_t { kE, kTwo };

struct PartialState {
  float max = -kInfinity;
  double sum = 0.0;
};

// Both infinities say that a partial result is empty.
TW_HD constexpr bool is_empty_partial(float lse) { return lse == kInfinity || lse == -kInfinity; }

TW_HD constexpr bool is_lonely(const PartialState& state) {
  return state.max == -kInfinity && state.sum == 0.0;
}

TW_HD inline double power_of(LogBase base, double exponent) {
  return base == LogBase::kTwo ? std::exp2(exponent) : std::exp(exponent);
}

TW_HD inline void add_partial(PartialState& state, float lse, LogBase base) {
  if (is_empty_partial(lse)) return;
  const float max = larger_score(state.max, lse);
  state.sum = state.sum * power_of(base, double{state.max} - max) + power_of(base, double{lse} - max);
  state.max = max;
}

// The weight of a partial result in the merged one, once all of them were added.
TW_HD inline double partial_weight(const PartialState& state, float lse, LogBase base) {
  if (is_empty_partial(lse)) return 0.0;
  return power_of(base, double{lse} - state.max) / state.sum;
}

// The natural lse of the merged result; +inf when all parts are empty.
TW_HD inline double merged_lse(const PartialState& state, LogBase base) {
  if (is_lonely(state)) return kInfinity;
  return state.max * (base == LogBase::kTwo ? kLn2Double : 1.0) + std::log(state.sum);
}

}  // namespace tilewise::softmax
