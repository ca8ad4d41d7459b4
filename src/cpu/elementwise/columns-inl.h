// What the softmax and its gradient share: exponentials of scores, and which columns count for a vector of
// rows. Included once per instruction set.
#if defined(TILEWISE_CPU_ELEMENTWISE_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWISE_CPU_ELEMENTWISE_COLUMNS_INL_H_
#undef TILEWISE_CPU_ELEMENTWISE_COLUMNS_INL_H_
#else
#define TILEWISE_CPU_ELEMENTWISE_COLUMNS_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

// exp of a score less the row's maximum, which is not above 0. The library's function turns NaN into 0 and
// wants no infinities: those stay out of it.
HWY_INLINE V exp_of_difference(D d, V x) {
  const V y = hn::Exp(d, hn::Max(x, hn::Set(d, -120.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// exp of any number. Above 128 the library's function would wrap around; from 89 on the result is +inf.
HWY_INLINE V exp_of(D d, V x) {
  const V y = exp_of_difference(d, hn::Min(x, hn::Set(d, 104.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// Which columns count for a vector of rows.
struct AllColumns {
  HWY_INLINE V keep(D, int64_t, V x, V) const { return x; }
};

struct ColumnLimits {
  using DI = hn::RebindToSigned<D>;
  hn::Vec<DI> first;
  hn::Vec<DI> last;

  HWY_INLINE V keep(D d, int64_t column, V x, V otherwise) const {
    const auto at = hn::Set(DI(), static_cast<int32_t>(column));
    const auto outside = hn::Or(hn::Gt(first, at), hn::Not(hn::Gt(last, at)));
    return hn::IfThenElse(hn::RebindMask(d, outside), otherwise, x);
  }
};

HWY_INLINE ColumnLimits load_limits(const int32_t* first, const int32_t* last) {
  const ColumnLimits::DI di;
  return {hn::Load(di, first), hn::Load(di, last)};
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#endif
