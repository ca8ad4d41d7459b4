// The encoder's arithmetic on pairs of columns that is not formats/codec.h's own, and why the bits are the
// same. A pair is two bf16 columns in a word, the first in the low half. tests/format compares every column
// under every scale.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/numeric.h"

namespace tilewise::cuda {

inline constexpr uint32_t kSigns = 0x80008000u;  // of a pair
inline constexpr uint32_t kMagnitudes = 0x7FFF7FFFu;

// What a pair of a group whose scale is NaN is encoded as, under any scale: the smallest magnitudes, whose
// codes are the sign bits alone.
TW_HD constexpr uint32_t smallest_of_sign(uint32_t pair) { return (pair & kSigns) | 0x00010001u; }

// 1 / scale, exactly, for a power of two from 2^-126 to 2^126: x * (1 / scale) and x / scale are one number,
// rounded once.
TW_HD constexpr float inverse_of_pow2(float scale) { return bits_to_f32((254u << 23) - f32_to_bits(scale)); }

// An e2m1 code is its value * 2^-14 in fp16, subnormal below 1, without the nine low bits of the mantissa. So
// a column's code is column * factor in fp16, rounded to the bits that are left. The product is not the
// quotient's exact value, but its rounding to fp16 is as good: a quotient is halfway between two codes or at
// least 2^-8 of it away, as column and scale have 8 bits and 4; that is more than fp16 rounds by, and the
// products before it are off by 2^-22.
TW_HD constexpr float e2m1_factor(float scale) { return 0x1p-14f / scale; }
inline constexpr uint16_t kE2m1Top = 0x0E00;  // 6 * 2^-14 in fp16

// The codes of a pair, the first in the low nibble. `scaled` holds their magnitudes * factor in fp16, those
// above kE2m1Top replaced by it. Zeros have no sign, other numbers keep theirs.
TW_HD constexpr uint32_t e2m1_codes(uint32_t pair, uint32_t scaled) {
  const uint32_t signs = ((pair & kMagnitudes) + kMagnitudes) & pair & kSigns;
  const uint32_t odd = (scaled >> 9) & 0x00010001u;
  const uint32_t codes = ((scaled + 0x00FF00FFu + odd) >> 9) & 0x00070007u;
  const uint32_t nibbles = codes | signs >> 12;
  return (nibbles | nibbles >> 12) & 0xFFu;
}

}  // namespace tilewise::cuda
