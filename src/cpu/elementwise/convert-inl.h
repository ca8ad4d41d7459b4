// Vector forms of core/numeric.h's conversions, included once per instruction set. Same bits as the scalar
// ones.
#if defined(TILEWISE_CPU_ELEMENTWISE_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TILEWISE_CPU_ELEMENTWISE_CONVERT_INL_H_
#undef TILEWISE_CPU_ELEMENTWISE_CONVERT_INL_H_
#else
#define TILEWISE_CPU_ELEMENTWISE_CONVERT_INL_H_
#endif

#include <hwy/highway.h>

#include "core/numeric.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using U32 = hn::RebindToUnsigned<D>;
template <class D>
using Bits = hn::Vec<U32<D>>;

/// `lanes` bytes as 32-bit integers.
template <class D>
HWY_INLINE Bits<D> load_bytes(D, const uint8_t* p) {
  const hn::Rebind<uint8_t, D> d8;
  return hn::PromoteTo(U32<D>(), hn::LoadU(d8, p));
}

template <class D>
HWY_INLINE void store_bytes(D d, Bits<D> codes, uint8_t* p) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToSigned<D> di;
  (void)d;
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, codes)), d8, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(U32<D>(), hn::LoadU(d16, &p->bits))));
}

/// Nearest even, in the low 16 bits; every NaN becomes numeric.h's.
template <class D>
HWY_INLINE Bits<D> bf16_bits(D d, hn::Vec<D> x) {
  const U32<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  (void)d;
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, uint32_t{kBf16Nan}), rounded);
}

template <class D>
HWY_INLINE void store_bf16(D d, hn::Vec<D> x, BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bf16_bits(d, x))), d16, &p->bits);
}

#if HWY_TARGET <= HWY_AVX2
template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const FP16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
}

/// Nearest even; every NaN becomes numeric.h's.
template <class D>
HWY_INLINE void store_f16(D d, hn::Vec<D> x, FP16* p) {
  const hn::Rebind<hwy::float16_t, D> d16;
  const auto one_nan = hn::IfThenElse(hn::IsNaN(x), hn::BitCast(d, hn::Set(U32<D>(), kF32Nan)), x);
  hn::StoreU(hn::DemoteTo(d16, one_nan), d16, reinterpret_cast<hwy::float16_t*>(p));
}
#else
// Without hardware for them, Highway's conversions make numbers of infinities and do not round to nearest.
template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const FP16* p) {
  const U32<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto code = hn::PromoteTo(du, hn::LoadU(d16, &p->bits));
  const auto magnitude = hn::And(code, hn::Set(du, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::And(code, hn::Set(du, 0x8000u)));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto is_finite = hn::Lt(magnitude, hn::Set(du, 0x7C00u));
  const auto rebase = hn::IfThenElse(is_finite, hn::Set(du, 112u << 23), hn::Set(du, 224u << 23));
  const auto normal = hn::BitCast(d, hn::Add(shifted, rebase));
  const auto subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(shifted, hn::Set(du, 113u << 23))), hn::Set(d, 0x1p-14f));
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 0x400u)));
  return hn::BitCast(d, hn::Or(hn::BitCast(du, hn::IfThenElse(is_subnormal, subnormal, normal)), sign));
}

/// Nearest even; every NaN becomes numeric.h's.
template <class D>
HWY_INLINE void store_f16(D d, hn::Vec<D> x, FP16* p) {
  const U32<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Abs(x);
  const auto bits = hn::BitCast(du, magnitude);
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(du, x)), hn::Set(du, 0x8000u));
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1u));
  const auto rebased = hn::Sub(bits, hn::Set(du, 112u << 23));
  const auto rounded = hn::ShiftRight<13>(hn::Add(rebased, hn::Add(odd, hn::Set(du, 0xFFFu))));
  const auto normal = hn::Min(rounded, hn::Set(du, 0x7C00u));
  // Floats of [0.5, 1) are 2^-24 apart, as fp16's subnormals are: the sum rounds.
  const auto anchor = hn::Set(d, 0.5f);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, anchor)), hn::BitCast(du, anchor));
  const auto is_subnormal = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-14f)));
  const auto number = hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), sign);
  const auto code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, uint32_t{kF16Nan}), number);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, code)), d16, &p->bits);
}
#endif

/// e4m3 codes (0..255). Subnormal codes become differences of two normal floats: the result then depends on
/// no flush-to-zero mode and takes no slow path.
template <class D>
HWY_INLINE hn::Vec<D> e4m3_value(D d, Bits<D> code) {
  const U32<D> du;
  const auto magnitude = hn::And(code, hn::Set(du, 0x7Fu));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(du, 0x80u)));
  const auto shifted = hn::ShiftLeft<20>(magnitude);
  const auto normal = hn::BitCast(d, hn::Add(shifted, hn::Set(du, 120u << 23)));
  const auto subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(shifted, hn::Set(du, 121u << 23))), hn::Set(d, 0x1p-6f));
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 8u)));
  const auto is_nan = hn::RebindMask(d, hn::Eq(magnitude, hn::Set(du, 0x7Fu)));
  const auto value = hn::IfThenElse(is_subnormal, subnormal, normal);
  const auto signed_value = hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
  return hn::IfThenElse(is_nan, hn::BitCast(d, hn::Set(du, kF32Nan)), signed_value);
}

/// e2m1 codes (0..15).
template <class D>
HWY_INLINE hn::Vec<D> e2m1_value(D d, Bits<D> code) {
  const U32<D> du;
  const auto magnitude = hn::And(code, hn::Set(du, 7u));
  const auto sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(du, 8u)));
  const auto shifted = hn::ShiftLeft<22>(magnitude);
  const auto normal = hn::BitCast(d, hn::Add(shifted, hn::Set(du, 126u << 23)));
  const auto subnormal = hn::Sub(hn::BitCast(d, hn::Add(shifted, hn::Set(du, 127u << 23))), hn::Set(d, 1.0f));
  const auto is_subnormal = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(du, 2u)));
  return hn::BitCast(d, hn::Or(hn::BitCast(du, hn::IfThenElse(is_subnormal, subnormal, normal)), sign));
}

/// Nearest even, saturating at 448 (infinities too), NaN gives 0x7F.
template <class D>
HWY_INLINE Bits<D> e4m3_codes(D d, hn::Vec<D> x) {
  const U32<D> du;
  const auto magnitude = hn::Min(hn::Abs(x), hn::Set(d, 448.0f));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80u));
  // e4m3 numbers of exponent e are 2^(e - 3) apart, as floats of [2^(e + 20), 2^(e + 21)) are; subnormal ones
  // as those of e = -6: the sum rounds, and its last bits count the steps.
  const auto exponent =
      hn::Max(hn::And(hn::BitCast(du, magnitude), hn::Set(du, kF32Inf)), hn::Set(du, 121u << 23));
  const auto anchor = hn::Add(exponent, hn::Set(du, 20u << 23));
  const auto steps = hn::Sub(hn::BitCast(du, hn::Add(magnitude, hn::BitCast(d, anchor))), anchor);
  // Eight steps an exponent.
  const auto code = hn::Add(steps, hn::Sub(hn::ShiftRight<20>(exponent), hn::Set(du, 121u << 3)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, uint32_t{kE4m3Nan}),
                        hn::Or(code, sign));
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
