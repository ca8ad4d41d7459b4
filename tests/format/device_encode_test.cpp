// The GPU encoder's arithmetic against formats/codec.h: every column under every scale.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "core/numeric.h"
#include "cuda/portable/encode.h"
#include "formats/codec.h"

namespace tilewise {
namespace {

using formats::Element;
using formats::element_code;

constexpr uint32_t kColumns = 0x10000;

// What encode_e2m1 of the kernel does with a pair.
uint32_t device_e2m1(uint32_t pair, float scale) {
  const float factor = cuda::e2m1_factor(scale);
  const auto scaled = [&](uint32_t column) -> uint32_t {
    const float magnitude = bf16_bits_to_f32(static_cast<uint16_t>(column & 0x7FFFu));
    return std::min(f32_to_f16_bits(magnitude * factor), cuda::kE2m1Top);
  };
  return cuda::e2m1_codes(pair, scaled(pair & 0xFFFFu) | scaled(pair >> 16) << 16);
}

uint8_t device_e4m3(uint16_t column, float scale) {
  return f32_to_e4m3(bf16_bits_to_f32(column) * cuda::inverse_of_pow2(scale));
}

bool is_finite(uint32_t column) { return f32_is_finite(bf16_bits_to_f32(static_cast<uint16_t>(column))); }

TEST(DeviceEncode, E2m1CodesOfEveryColumnUnderEveryScale) {
  for (uint32_t code = 1; code < kE4m3Nan; ++code) {
    const float scale = e4m3_to_f32(static_cast<uint8_t>(code));
    for (uint32_t column = 0; column < kColumns; ++column) {
      const uint32_t other = (column * 40503u + 77u) % kColumns;
      if (!is_finite(column) || !is_finite(other)) continue;
      const uint32_t expected = element_code(Element::kE2m1, {static_cast<uint16_t>(column)}, scale) |
                                element_code(Element::kE2m1, {static_cast<uint16_t>(other)}, scale) << 4;
      ASSERT_EQ(device_e2m1(column | other << 16, scale), expected)
          << column << " and " << other << " / " << scale;
    }
  }
}

TEST(DeviceEncode, E4m3CodesOfEveryColumnUnderEveryPowerOfTwo) {
  // The least scale is that of 1e-4, the largest one that of bf16's largest number.
  for (int power = -13; power <= 120; ++power) {
    const float scale = bits_to_f32(static_cast<uint32_t>(power + 127) << 23);
    for (uint32_t column = 0; column < kColumns; ++column) {
      if (!is_finite(column)) continue;
      const BF16 x{static_cast<uint16_t>(column)};
      ASSERT_EQ(int{device_e4m3(x.bits, scale)}, int{element_code(Element::kE4m3, x, scale)})
          << column << " / 2^" << power;
    }
  }
}

TEST(DeviceEncode, ScalesArePowersOfTwoOfThatRange) {
  for (const formats::ScaleType type : {formats::ScaleType::kFp32, formats::ScaleType::kUe8m0}) {
    formats::Scales scales{};
    scales.type = type;
    scales.rule = formats::ScaleRule::kPow2;
    for (uint32_t column = 0; column < 0x7F80; ++column) {
      const uint32_t stored =
          formats::quantised_scale(scales, bf16_bits_to_f32(static_cast<uint16_t>(column)));
      const float scale = formats::scale_value(type, stored);
      ASSERT_NE(stored, formats::nan_scale(type));
      ASSERT_EQ(f32_to_bits(scale) & 0x7FFFFFu, 0u);
      ASSERT_GE(scale, 0x1p-13f);
      ASSERT_LE(scale, 0x1p120f);
      ASSERT_EQ(scale * cuda::inverse_of_pow2(scale), 1.0f);
    }
  }
}

// Groups that have a NaN or an infinity.
TEST(DeviceEncode, UnderANanScaleOnlySignsAreLeft) {
  const float nan = bits_to_f32(kF32Nan);
  for (uint32_t column = 0; column < kColumns; ++column) {
    const BF16 x{static_cast<uint16_t>(column)};
    const uint32_t pair = cuda::smallest_of_sign(column | (column ^ 0x8000u) << 16);
    const BF16 minus{static_cast<uint16_t>(column ^ 0x8000u)};
    ASSERT_EQ(device_e2m1(pair, 1.0f),
              uint32_t{element_code(Element::kE2m1, x, nan)} | element_code(Element::kE2m1, minus, nan) << 4);
    ASSERT_EQ(device_e4m3(static_cast<uint16_t>(pair), 1.0f), element_code(Element::kE4m3, x, nan));
    ASSERT_EQ(device_e4m3(static_cast<uint16_t>(pair >> 16), 1.0f), element_code(Element::kE4m3, minus, nan));
  }
}

}  // namespace
}  // namespace tilewise
