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

/// ue8m0 bytes.
template <class D>
HWY_INLINE hn::Vec<D> ue8m0_value(D d, Bits<D> byte) {
  const U32<D> du;
  const auto scaled = hn::ShiftLeft<23>(byte);
  const auto with_zero = hn::IfThenElse(hn::Eq(byte, hn::Zero(du)), hn::Set(du, 0x00400000u), scaled);
  return hn::BitCast(d, hn::IfThenElse(hn::Eq(byte, hn::Set(du, 255u)), hn::Set(du, kF32Nan), with_zero));
}

/// Nearest even, saturating at 448 (infinities too), NaN gives 0x7F.
template <class D>
HWY_INLINE Bits<D> e4m3_codes(D d, hn::Vec<D> x) {
  const U32<D> du;
  const auto magnitude = hn::Min(hn::Abs(x), hn::Set(d, 448.0f));
  const auto bits = hn::BitCast(du, magnitude);
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, x)), hn::Set(du, 0x80u));
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(du, 1u));
  const auto rebased = hn::Sub(bits, hn::Set(du, 120u << 23));
  const auto normal = hn::ShiftRight<20>(hn::Add(rebased, hn::Add(odd, hn::Set(du, 0x7FFFFu))));
  // Floats of [2^14, 2^15) are 2^-9 apart, as e4m3's subnormals are: the sum rounds.
  const auto anchor = hn::Set(d, 0x1p14f);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, anchor)), hn::BitCast(du, anchor));
  const auto is_subnormal = hn::RebindMask(du, hn::Lt(magnitude, hn::Set(d, 0x1p-6f)));
  const auto code = hn::Or(hn::IfThenElse(is_subnormal, subnormal, normal), sign);
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), hn::Set(du, uint32_t{kE4m3Nan}), code);
}

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
