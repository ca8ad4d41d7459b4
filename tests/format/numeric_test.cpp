// Scalar conversions: every code of the small types, every tie, and random floats against a nearest search in
// double precision over tables that are built here from the definition of each type.
#include "core/numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tilewise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t bits_of(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

float float_of(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// A type by its field widths. `finite` non-negative codes are numbers; code `finite` would be the next one.
struct SmallType {
  std::string name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  int finite;
  bool saturates;  // otherwise codes past the last one mean infinity
  std::function<uint32_t(float)> encode;
  std::function<float(uint32_t)> decode;

  uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }

  double value(int code) const {
    const int exponent = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  }

  // The code of a non-negative number, by search.
  int nearest(double x) const {
    int low = 0;
    int high = finite;  // the first code that is no number
    while (low < high) {
      const int middle = (low + high) / 2;
      if (value(middle) < x) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    int best = low;
    if (low > 0) {
      const double below = x - value(low - 1);
      const double above = value(low) - x;
      if (below < above || (below == above && low % 2 == 1)) best = low - 1;
    }
    return best >= finite && saturates ? finite - 1 : best;
  }
};

SmallType e4m3() {
  return {"e4m3",
          4,
          3,
          7,
          127,
          true,
          [](float x) { return f32_to_e4m3(x); },
          [](uint32_t c) { return e4m3_to_f32(static_cast<uint8_t>(c)); }};
}
SmallType e2m1() {
  return {"e2m1",
          2,
          1,
          1,
          8,
          true,
          [](float x) { return f32_to_e2m1(x); },
          [](uint32_t c) { return e2m1_to_f32(static_cast<uint8_t>(c)); }};
}
SmallType f16() {
  return {"f16",
          5,
          10,
          15,
          0x7C00,
          false,
          [](float x) { return f32_to_f16_bits(x); },
          [](uint32_t c) { return f16_bits_to_f32(static_cast<uint16_t>(c)); }};
}
SmallType bf16() {
  return {"bf16",
          8,
          7,
          127,
          0x7F80,
          false,
          [](float x) { return f32_to_bf16_bits(x); },
          [](uint32_t c) { return bf16_bits_to_f32(static_cast<uint16_t>(c)); }};
}

class SmallTypes : public testing::TestWithParam<SmallType> {
 protected:
  const SmallType& type() const { return GetParam(); }

  // e2m1 alone drops the sign of a zero that was zero before rounding.
  uint32_t expected_code(float x) const {
    const bool negative = std::signbit(x);
    if (type().name == "e2m1" && x == 0) return 0;
    return static_cast<uint32_t>(type().nearest(std::fabs(static_cast<double>(x)))) |
           (negative ? type().sign_bit() : 0u);
  }
};

INSTANTIATE_TEST_SUITE_P(All, SmallTypes, testing::Values(e4m3(), e2m1(), f16(), bf16()),
                         [](const auto& test) { return test.param.name; });

TEST_P(SmallTypes, EveryFiniteCodeHasItsValueWithBothSigns) {
  for (int code = 0; code < type().finite; ++code) {
    const auto expected = static_cast<float>(type().value(code));
    ASSERT_EQ(bits_of(type().decode(code)), bits_of(expected)) << code;
    ASSERT_EQ(bits_of(type().decode(code | type().sign_bit())), bits_of(-expected)) << code;
  }
}

TEST_P(SmallTypes, EveryFiniteCodeComesBack) {
  for (int code = 0; code < type().finite; ++code) {
    ASSERT_EQ(type().encode(type().decode(code)), static_cast<uint32_t>(code));
    if (type().name == "e2m1" && code == 0) continue;
    const uint32_t negative = static_cast<uint32_t>(code) | type().sign_bit();
    ASSERT_EQ(type().encode(type().decode(negative)), negative);
  }
}

TEST_P(SmallTypes, TiesGoToTheEvenCodeAndTheirNeighboursToTheNearer) {
  for (int code = 0; code + 1 < type().finite; ++code) {
    const auto middle = static_cast<float>((type().value(code) + type().value(code + 1)) / 2);
    const int even = code % 2 == 0 ? code : code + 1;
    ASSERT_EQ(type().encode(middle), static_cast<uint32_t>(even)) << code;
    ASSERT_EQ(type().encode(-middle), static_cast<uint32_t>(even) | type().sign_bit()) << code;
    ASSERT_EQ(type().encode(std::nextafter(middle, 0.0f)), static_cast<uint32_t>(code));
    ASSERT_EQ(type().encode(std::nextafter(middle, kInf)), static_cast<uint32_t>(code + 1));
  }
}

TEST_P(SmallTypes, RandomFloatsGoToTheNearestCode) {
  std::mt19937 random(1);
  const int lowest = 1 - type().bias - type().mantissa_bits - 3;
  const int highest = (type().finite >> type().mantissa_bits) - type().bias + 3;
  std::uniform_int_distribution<int> exponent(std::max(lowest, -126), std::min(highest, 127));
  for (int i = 0; i < 300000; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    const float anywhere = float_of(bits);
    const float in_range =
        float_of((bits & 0x807FFFFFu) | static_cast<uint32_t>(exponent(random) + 127) << 23);
    for (float x : {anywhere, in_range}) {
      if (std::isnan(x)) continue;
      ASSERT_EQ(type().encode(x), expected_code(x)) << std::hexfloat << x;
    }
  }
}

TEST(Numeric, ListedE2m1Values) {
  const float listed[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(bits_of(e2m1_to_f32(static_cast<uint8_t>(code))), bits_of(listed[code]));
    EXPECT_EQ(bits_of(e2m1_to_f32(static_cast<uint8_t>(code + 8))), bits_of(-listed[code]));
    EXPECT_EQ(e2m1_to_f32(static_cast<uint8_t>(code + 0xF0)), listed[code]) << "high nibble is not read";
  }
}

TEST(Numeric, ListedE4m3Values) {
  EXPECT_EQ(e4m3_to_f32(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_f32(0xBC), -1.5f);
  EXPECT_EQ(e4m3_to_f32(0x01), 0.001953125f);
  EXPECT_EQ(e4m3_to_f32(0x07), 0.013671875f);
  EXPECT_EQ(e4m3_to_f32(0x08), 0.015625f);
  EXPECT_EQ(e4m3_to_f32(0x7E), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0xFF)));
}

TEST(Numeric, NanHasOneForm) {
  for (uint32_t bits :
       {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FA5A5A5u}) {
    const float nan = float_of(bits);
    EXPECT_EQ(f32_to_bf16_bits(nan), 0x7FC0);
    EXPECT_EQ(f32_to_f16_bits(nan), 0x7E00);
    EXPECT_EQ(f32_to_e4m3(nan), 0x7F);
    EXPECT_EQ(f32_to_e2m1(nan), bits >> 31 != 0 ? 8 : 0);
    EXPECT_EQ(pow2_ceil_to_ue8m0(nan), 0xFF);
    EXPECT_EQ(bits_of(pow2_ceil(nan)), 0x7FC00000u);
    EXPECT_TRUE(f32_is_nan(nan));
    EXPECT_FALSE(f32_is_finite(nan));
  }
}

TEST(Numeric, HalfTypesReadInfinityAndNan) {
  for (uint32_t mantissa = 0; mantissa < 0x400; ++mantissa) {
    const float up = f16_bits_to_f32(static_cast<uint16_t>(0x7C00 | mantissa));
    const float down = f16_bits_to_f32(static_cast<uint16_t>(0xFC00 | mantissa));
    EXPECT_TRUE(mantissa == 0 ? up == kInf : std::isnan(up));
    EXPECT_TRUE(mantissa == 0 ? down == -kInf : std::isnan(down));
  }
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    ASSERT_EQ(bits_of(bf16_bits_to_f32(static_cast<uint16_t>(bits))), bits << 16);
  }
}

TEST(Numeric, OverflowSaturatesOrBecomesInfinity) {
  EXPECT_EQ(f32_to_f16_bits(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16_bits(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16_bits(-1e30f), 0xFC00);
  EXPECT_EQ(f32_to_f16_bits(kInf), 0x7C00);
  EXPECT_EQ(f32_to_bf16_bits(float_of(0x7F7F7FFF)), 0x7F7F);
  EXPECT_EQ(f32_to_bf16_bits(float_of(0x7F7F8000)), 0x7F80);
  EXPECT_EQ(f32_to_bf16_bits(-kInf), 0xFF80);
  for (float x : {448.0f, 449.0f, 463.9f, 464.0f, 480.0f, 1e30f, 3.4e38f, kInf}) {
    EXPECT_EQ(f32_to_e4m3(x), 0x7E) << x;
    EXPECT_EQ(f32_to_e4m3(-x), 0xFE) << x;
    EXPECT_EQ(f32_to_e2m1(x), 7) << x;
    EXPECT_EQ(f32_to_e2m1(-x), 15) << x;
  }
}

TEST(Numeric, ZerosAndTinyNumbersKeepOrDropTheirSign) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(f32_to_e4m3(0.0f), 0x00);
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(f32_to_e4m3(-tiny), 0x80);
  EXPECT_EQ(f32_to_e2m1(0.0f), 0);
  EXPECT_EQ(f32_to_e2m1(-0.0f), 0);
  EXPECT_EQ(f32_to_e2m1(tiny), 0);
  EXPECT_EQ(f32_to_e2m1(-tiny), 8);
  EXPECT_EQ(f32_to_e2m1(-0.25f), 8);
  EXPECT_EQ(f32_to_f16_bits(-tiny), 0x8000);
  EXPECT_EQ(f32_to_bf16_bits(-0.0f), 0x8000);
}

TEST(Numeric, E4m3RoundedUpIsTheFirstCodeNotBelow) {
  const SmallType type = e4m3();
  std::mt19937 random(2);
  std::uniform_real_distribution<float> octave(-12.0f, 8.8f);
  for (int code = 0; code < 127; ++code) {
    const auto value = static_cast<float>(type.value(code));
    EXPECT_EQ(f32_to_e4m3_up(value), code) << "an exact value stays";
    if (code < 126) {
      EXPECT_EQ(f32_to_e4m3_up(std::nextafter(value, kInf)), code + 1);
    }
  }
  for (int i = 0; i < 100000; ++i) {
    const float x = std::min(std::exp2(octave(random)), 448.0f);
    int first = 0;
    while (type.value(first) < x) ++first;
    ASSERT_EQ(f32_to_e4m3_up(x), first) << x;
  }
}

TEST(Numeric, Pow2CeilIsExactBesideEveryPowerOfTwo) {
  for (int n = -126; n <= 127; ++n) {
    const float power = std::ldexp(1.0f, n);
    EXPECT_EQ(pow2_ceil(power), power) << n;
    EXPECT_EQ(pow2_ceil(std::nextafter(power, 0.0f)), power) << n;
    EXPECT_EQ(pow2_ceil(std::nextafter(power, kInf)), std::ldexp(1.0f, n + 1)) << n;
  }
  EXPECT_EQ(pow2_ceil(0.0f), 0.0f);
  EXPECT_EQ(pow2_ceil(std::numeric_limits<float>::denorm_min()), 0x1p-126f);
  EXPECT_EQ(pow2_ceil(kInf), kInf);
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const float x = float_of(static_cast<uint32_t>(random()) & 0x7FFFFFFFu);
    if (!std::isnormal(x) || x > 0x1p127f) continue;
    int exponent = 0;
    const double fraction = std::frexp(static_cast<double>(x), &exponent);
    ASSERT_EQ(pow2_ceil(x), std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent)) << x;
  }
}

TEST(Numeric, Ue8m0HasEveryPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const auto power = static_cast<float>(std::ldexp(1.0, code - 127));
    EXPECT_EQ(bits_of(ue8m0_to_f32(static_cast<uint8_t>(code))), bits_of(power)) << code;
    EXPECT_EQ(pow2_ceil_to_ue8m0(power), code);
    EXPECT_EQ(pow2_ceil_to_ue8m0(std::nextafter(power, 0.0f)), code);
    EXPECT_EQ(pow2_ceil_to_ue8m0(std::nextafter(power, kInf)), std::min(code + 1, 254));
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_f32(255)));
  EXPECT_EQ(pow2_ceil_to_ue8m0(0.0f), 0);
  EXPECT_EQ(pow2_ceil_to_ue8m0(std::numeric_limits<float>::max()), 254);
  EXPECT_EQ(pow2_ceil_to_ue8m0(kInf), 255);
}

TEST(Numeric, E4m3ScaleIsThatOfTheDivision) {
  const auto check = [](float amax) {
    ASSERT_EQ(e4m3_scale_to_ue8m0(amax), pow2_ceil_to_ue8m0(amax / 448.0f)) << amax;
  };
  std::mt19937 random(4);
  for (int i = 0; i < 100000; ++i) {
    const float x = float_of(static_cast<uint32_t>(random()) & 0x7FFFFFFFu);
    if (x >= 1e-4f && std::isfinite(x)) check(x);
  }
  for (int exponent = -13; exponent <= 127; ++exponent) {
    for (const double fraction : {1.0, 1.75}) {
      const auto x = static_cast<float>(std::ldexp(fraction, exponent));
      for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, kInf)}) check(near);
    }
  }
  check(1e-4f);
  check(kInf);
  check(std::numeric_limits<float>::max());
}

TEST(Numeric, WorksAtCompileTime) {
  static_assert(f32_to_bf16_bits(1.00390625f) == 0x3F80 && f32_to_bf16_bits(1.01171875f) == 0x3F82);
  static_assert(f32_to_e4m3(-0.0009765625f) == 0x80 && f32_to_e2m1(2.5f) == 4);
  static_assert(f16_bits_to_f32(f32_to_f16_bits(0x1.8p-24f)) == 0x1p-23f);
  static_assert(pow2_ceil(0.75f) == 1.0f && pow2_ceil_to_ue8m0(3.0f) == 129);
  EXPECT_EQ(f32_to_bits(bits_to_f32(0x12345678u)), 0x12345678u);
}

}  // namespace
}  // namespace tilewise
