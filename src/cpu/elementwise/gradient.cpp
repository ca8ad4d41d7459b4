// The gradient of the scores in Highway: a vector holds neighbouring rows, as in softmax.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/gradient.cpp"
#include "cpu/targets.h"
// Second, before any other header of Highway:
#include <hwy/foreach_target.h>
// Then the rest.
#include <hwy/highway.h>

#include "cpu/elementwise/columns-inl.h"
#include "cpu/elementwise/gradient.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

template <bool kValues, class Columns>
HWY_INLINE void gradient_vector(float* s, float* dp, int64_t keys, int64_t ld, float score_scale,
                                const GradientRows& state, const Columns& columns, float* key_sums) {
  const D d;
  const V scale = hn::Set(d, score_scale);
  const V lse = hn::Load(d, state.lse);
  const V delta = hn::Load(d, state.delta);
  V value = hn::Zero(d);
  for (int64_t k = 0; k < keys; ++k) {
    const V x = hn::Sub(hn::Mul(hn::Load(d, s + k * ld), scale), lse);
    // The caller's lse need not be above the scores.
    const V p = columns.keep(d, k, exp_of(d, x), hn::Zero(d));
    const V gain = hn::Load(d, dp + k * ld);
    const V ds = hn::Mul(hn::Mul(p, hn::Sub(gain, delta)), scale);
    if constexpr (kValues) value = hn::Add(value, columns.keep(d, k, hn::Mul(p, gain), hn::Zero(d)));
    hn::Store(p, d, s + k * ld);
    hn::Store(columns.keep(d, k, ds, hn::Zero(d)), d, dp + k * ld);
    if (key_sums != nullptr) key_sums[k] += hn::GetLane(hn::SumOfLanes(d, p));
  }
  if constexpr (kValues) hn::Store(value, d, state.values);
}

template <bool kValues>
void gradient_tile_of(float* s, float* dp, int64_t keys, int64_t rows, float scale, const GradientRows& state,
                      float* key_sums) {
  const D d;
  for (int64_t row = 0; row < rows; row += static_cast<int64_t>(hn::Lanes(d))) {
    float* values = kValues ? state.values + row : nullptr;
    const GradientRows here{state.lse + row, state.delta + row, nullptr, nullptr, values};
    if (state.first == nullptr) {
      gradient_vector<kValues>(s + row, dp + row, keys, rows, scale, here, AllColumns(), key_sums);
    } else {
      gradient_vector<kValues>(s + row, dp + row, keys, rows, scale, here,
                               load_limits(state.first + row, state.last + row), key_sums);
    }
  }
}

void gradient_tile(float* s, float* dp, int64_t keys, int64_t rows, float scale, const GradientRows& state,
                   const GradientWeights&, float* key_sums) {
  const auto tile = state.values == nullptr ? gradient_tile_of<false> : gradient_tile_of<true>;
  tile(s, dp, keys, rows, scale, state, key_sums);
}

const GradientOps kGradientOps = {gradient_tile, nullptr, nullptr};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cpu {

const TargetTables<GradientOps>& gradient_ops() {
  static const TargetTables<GradientOps> tables = TW_TARGET_TABLES(kGradientOps);
  return tables;
}

}  // namespace tilewise::cpu
#endif
