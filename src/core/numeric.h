// Scalar conversions between fp32 and the narrow float types (bf16, fp16, e4m3, e2m1, ue8m0).
// They are written on bit patterns, so that every backend and every compiler flag gives the same bits.
// One rule for NaN: conversions to a narrow type give one fixed NaN (sign and payload dropped), because
// processors disagree about the NaN that an operation returns.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace tilewise {

struct BF16 {
  uint16_t bits;
};

struct FP16 {
  uint16_t bits;
};

static_assert(sizeof(BF16) == 2 && sizeof(FP16) == 2);

inline constexpr uint32_t kF32Inf = 0x7F800000u;
inline constexpr uint32_t kF32Nan = 0x7FC00000u;
inline constexpr uint16_t kBf16Nan = 0x7FC0u;
inline constexpr uint16_t kF16Nan = 0x7E00u;
inline constexpr uint8_t kE4m3Nan = 0x7Fu;
inline constexpr uint8_t kE4m3Max = 0x7Eu;  // 448
inline constexpr uint8_t kUe8m0Nan = 0xFFu;

TW_HD constexpr uint32_t f32_to_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
TW_HD constexpr float bits_to_f32(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The bits of |x|: as integers they order as the magnitudes do, with inf and then NaN on top.
TW_HD constexpr uint32_t f32_magnitude_bits(float x) { return f32_to_bits(x) & 0x7FFFFFFFu; }

TW_HD constexpr bool f32_is_nan(float x) { return f32_magnitude_bits(x) > kF32Inf; }
TW_HD constexpr bool f32_is_finite(float x) { return f32_magnitude_bits(x) < kF32Inf; }

// Drops the low `shift` bits of a bit pattern, to nearest, ties to even. A carry out of the mantissa
// increments the exponent, which is the right neighbour.
TW_HD constexpr uint32_t drop_bits_to_even(uint32_t bits, int shift) {
  return (bits + ((1u << (shift - 1)) - 1u) + ((bits >> shift) & 1u)) >> shift;
}

// bf16 ------------------------------------------------------------------------------------------------

TW_HD constexpr uint16_t f32_to_bf16_bits(float x) {
  return f32_is_nan(x) ? kBf16Nan : static_cast<uint16_t>(drop_bits_to_even(f32_to_bits(x), 16));
}

TW_HD constexpr float bf16_bits_to_f32(uint16_t bits) {
  return bits_to_f32(static_cast<uint32_t>(bits) << 16);
}

// fp16 ------------------------------------------------------------------------------------------------

TW_HD constexpr uint16_t f32_to_f16_bits(float x) {
  const uint32_t sign = (f32_to_bits(x) >> 16) & 0x8000u;
  const uint32_t a = f32_magnitude_bits(x);
  if (a > kF32Inf) return kF16Nan;
  uint32_t code = 0;
  if (a < 0x38800000u) {
    // Below 2^-14. The floats of [0.5, 1) are 2^-24 apart, as fp16's subnormals are: the sum rounds.
    code = f32_to_bits(bits_to_f32(a) + 0.5f) - f32_to_bits(0.5f);
  } else {
    code = drop_bits_to_even(a - (112u << 23), 13);
    code = code < 0x7C00u ? code : 0x7C00u;
  }
  return static_cast<uint16_t>(sign | code);
}

TW_HD constexpr float f16_bits_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t mantissa = bits & 0x3FFu;
  uint32_t magnitude = 0;
  if (exponent == 0) {
    magnitude = f32_to_bits(static_cast<float>(mantissa) * 0x1p-24f);
  } else {
    magnitude = (exponent == 31 ? kF32Inf : (exponent + 112u) << 23) | mantissa << 13;
  }
  return bits_to_f32(sign | magnitude);
}

// e4m3 (float8_e4m3fn) --------------------------------------------------------------------------------

// Saturates at 448, infinities too; a NaN of either sign gives 0x7F.
TW_HD constexpr uint8_t f32_to_e4m3(float x) {
  const uint32_t sign = (f32_to_bits(x) >> 24) & 0x80u;
  const uint32_t a = f32_magnitude_bits(x);
  if (a > kF32Inf) return kE4m3Nan;
  uint32_t code = 0;
  if (a < 0x3C800000u) {
    // Below 2^-6. The floats of [2^14, 2^15) are 2^-9 apart, as e4m3's subnormals are: the sum rounds.
    code = f32_to_bits(bits_to_f32(a) + 0x1p14f) - f32_to_bits(0x1p14f);
  } else {
    code = drop_bits_to_even(a - (120u << 23), 20);
    code = code < kE4m3Max ? code : kE4m3Max;
  }
  return static_cast<uint8_t>(sign | code);
}

TW_HD constexpr float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == kE4m3Nan) return bits_to_f32(sign | kF32Nan);
  if (magnitude < 8) return bits_to_f32(sign | f32_to_bits(static_cast<float>(magnitude) * 0x1p-9f));
  return bits_to_f32(sign | ((magnitude << 20) + (120u << 23)));
}

// The smallest code whose value is not below x. For x in [0, 448] only.
TW_HD constexpr uint8_t f32_to_e4m3_up(float x) {
  const uint8_t nearest = f32_to_e4m3(x);
  return e4m3_to_f32(nearest) < x ? static_cast<uint8_t>(nearest + 1) : nearest;
}

// e2m1 (fp4), the code in the low nibble --------------------------------------------------------------

// Saturates at 6, infinities too. A zero of either sign gives 0, a negative value that rounds to zero
// gives 8. There is no NaN to give: NaN becomes a zero with its sign bit.
TW_HD constexpr uint8_t f32_to_e2m1(float x) {
  const uint32_t sign = (f32_to_bits(x) >> 28) & 8u;
  const uint32_t a = f32_magnitude_bits(x);
  if (a == 0) return 0;
  if (a > kF32Inf) return static_cast<uint8_t>(sign);
  uint32_t code = 0;
  if (a < 0x3F800000u) {
    // Below 1. The floats of [2^22, 2^23) are 0.5 apart, as the three smallest codes are: the sum rounds.
    code = f32_to_bits(bits_to_f32(a) + 0x1p22f) - f32_to_bits(0x1p22f);
  } else {
    code = drop_bits_to_even(a - (126u << 23), 22);
    code = code < 7u ? code : 7u;
  }
  return static_cast<uint8_t>(sign | code);
}

// Reads the low nibble only.
TW_HD constexpr float e2m1_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 8u) << 28;
  const uint32_t magnitude = code & 7u;
  if (magnitude < 2) return bits_to_f32(sign | f32_to_bits(static_cast<float>(magnitude) * 0.5f));
  return bits_to_f32(sign | ((magnitude << 22) + (126u << 23)));
}

// Powers of two and ue8m0 -----------------------------------------------------------------------------

TW_HD constexpr float ue8m0_to_f32(uint8_t code) {
  if (code == 0) return 0x1p-127f;  // a subnormal float
  if (code == kUe8m0Nan) return bits_to_f32(kF32Nan);
  return bits_to_f32(static_cast<uint32_t>(code) << 23);
}

// The smallest power of two in fp32's normal range that is not below x, for x > 0 (0 stays 0; above 2^127
// and inf give inf; NaN stays NaN). On bits, because a logarithm may be off by one beside a power of two.
TW_HD constexpr float pow2_ceil(float x) {
  if (f32_is_nan(x)) return bits_to_f32(kF32Nan);
  return bits_to_f32((f32_to_bits(x) + 0x7FFFFFu) & kF32Inf);
}

// The code of the smallest 2^n not below x that ue8m0 has, for x >= 0: 2^-127 for all smaller x, 2^127 for
// all larger finite x; inf and NaN give the NaN code.
TW_HD constexpr uint8_t pow2_ceil_to_ue8m0(float x) {
  if (!f32_is_finite(x)) return kUe8m0Nan;
  if (x <= 0x1p-127f) return 0;
  const uint32_t code = (f32_to_bits(x) + 0x7FFFFFu) >> 23;
  return static_cast<uint8_t>(code < 254u ? code : 254u);
}

// The code of the smallest 2^n that an e4m3 number times 2^n needs to reach amax: that of
// pow2_ceil_to_ue8m0(amax / 448) for amax from 1e-4 on, without the division. 448 is 1.75 * 2^8, and no
// quotient of floats on either side of it rounds to a power of two.
TW_HD constexpr uint8_t e4m3_scale_to_ue8m0(float amax) {
  if (!f32_is_finite(amax)) return kUe8m0Nan;
  return static_cast<uint8_t>(((f32_to_bits(amax) + 0x1FFFFFu) >> 23) - 8u);
}

}  // namespace tilewise
