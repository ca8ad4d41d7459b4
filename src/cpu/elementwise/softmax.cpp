// The online softmax over one tile of scores in Highway. A vector holds neighbouring rows, so maxima and sums
// over keys need no step across lanes, and a row's bits do not depend on its neighbours.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/softmax.cpp"
#include "cpu/targets.h"
// Second, before any other header of Highway:
#include <hwy/foreach_target.h>
// Then the rest.
#include <hwy/highway.h>

#include "cpu/elementwise/columns-inl.h"
#include "cpu/elementwise/softmax.h"
#include "softmax/state.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

// softmax::safe_max
HWY_INLINE V safe_max(D d, V max) {
  const V lowest = hn::Set(d, -softmax::kInfinity);
  return hn::IfThenElse(hn::Eq(max, lowest), hn::Zero(d), max);
}

template <class Columns>
HWY_INLINE void softmax_vector(float* s, int64_t keys, int64_t ld, int64_t row, const SoftmaxRows& state,
                               const Columns& columns) {
  const D d;
  const V scale = hn::Load(d, state.scale + row);
  const V lowest = hn::Set(d, -softmax::kInfinity);
  const V old_max = hn::Load(d, state.max + row);
  V max = old_max;
  V nan = hn::Zero(d);  // NaN once a score is: Max may drop it
  for (int64_t k = 0; k < keys; ++k) {
    const V x = columns.keep(d, k, hn::Mul(hn::Load(d, s + k * ld + row), scale), lowest);
    max = hn::Max(max, x);
    nan = hn::IfThenElse(hn::IsNaN(x), x, nan);
  }
  nan = hn::IfThenElse(hn::IsNaN(old_max), old_max, nan);
  max = hn::IfThenElse(hn::IsNaN(nan), nan, max);

  const V base = safe_max(d, max);
  V sum = hn::Zero(d);
  for (int64_t k = 0; k < keys; ++k) {
    const V x = hn::Sub(hn::Mul(hn::Load(d, s + k * ld + row), scale), base);
    const V p = columns.keep(d, k, exp_of_difference(d, x), hn::Zero(d));
    sum = hn::Add(sum, p);
    hn::Store(p, d, s + k * ld + row);
  }
  const V rescale = exp_of_difference(d, hn::Sub(old_max, base));
  hn::Store(max, d, state.max + row);
  hn::Store(hn::MulAdd(hn::Load(d, state.sum + row), rescale, sum), d, state.sum + row);
  hn::Store(rescale, d, state.rescale + row);
}

void softmax_tile(float* s, int64_t keys, int64_t rows, const SoftmaxRows& state, void*) {
  const D d;
  for (int64_t row = 0; row < rows; row += static_cast<int64_t>(hn::Lanes(d))) {
    if (state.first == nullptr) {
      softmax_vector(s, keys, rows, row, state, AllColumns());
    } else {
      softmax_vector(s, keys, rows, row, state, load_limits(state.first + row, state.last + row));
    }
  }
}

const SoftmaxOps kSoftmaxOps = {softmax_tile, nullptr};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cpu {

const TargetTables<SoftmaxOps>& softmax_ops() {
  static const TargetTables<SoftmaxOps> tables = TW_TARGET_TABLES(kSoftmaxOps);
  return tables;
}

}  // namespace tilewise::cpu
#endif
