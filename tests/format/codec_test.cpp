// The scalar codec against a second encoder in double precision, and properties that hold for any quantiser
// of the kind.
#include "formats/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "core/numeric.h"
#include "tests/format/second_encoder.h"
#include "tilewise/kv_format.h"

namespace tilewise {
namespace {

using formats::decode_row;
using formats::encode_row;
using formats::record_spec;
using formats::RecordSpec;
using namespace second;

using Bytes = std::vector<uint8_t>;
using Row = std::vector<uint16_t>;  // bf16 bits

// From 248 * 2^120 on, the nearest e4m3 multiple of the scale is 256 * 2^120, which is past bf16's range.
constexpr double kRoundsToInfinity = 0x1.Fp127;

// Rows and helpers -------------------------------------------------------------------------------------

Bytes encoded(const RecordSpec& spec, const Row& row, int page = 1, int n = 0) {
  Bytes bytes(static_cast<size_t>(formats::token_bytes(spec)) * page, 0xEE);
  std::vector<BF16> x;
  for (uint16_t bits : row) x.push_back({bits});
  encode_row(spec, x.data(), bytes.data(), page, n);
  return bytes;
}

Row decoded(const RecordSpec& spec, const Bytes& bytes) {
  std::vector<BF16> x(spec.d);
  decode_row(spec, bytes.data(), 1, 0, x.data());
  Row row;
  for (BF16 v : x) row.push_back(v.bits);
  return row;
}

Row random_row(std::mt19937& random, int d, double magnitude) {
  std::normal_distribution<double> normal;
  Row row;
  for (int i = 0; i < d; ++i) row.push_back(rounded(normal(random) * magnitude));
  return row;
}

// Groups of 16 of different magnitudes, with zeros, extremes and (if asked) NaN and infinities among them.
Row mixed_row(std::mt19937& random, int d, bool special) {
  std::uniform_real_distribution<double> exponent(-30, 30);
  std::uniform_int_distribution<int> choice(0, 99);
  Row row;
  for (int first = 0; first < d; first += 16) {
    const Row part = random_row(random, 16, std::pow(10.0, exponent(random)));
    row.insert(row.end(), part.begin(), part.end());
    if (choice(random) < 20) std::fill(row.end() - 16, row.end(), uint16_t{0});
  }
  const uint16_t fine[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x7F7F, 0xFF7F, 0xB951, 0x38D2};
  const uint16_t poison[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81};
  for (uint16_t& x : row) {
    if (choice(random) < 3) x = fine[random() % std::size(fine)];
    if (special && choice(random) < 1 && choice(random) < 40) x = poison[random() % std::size(poison)];
  }
  return row;
}

std::vector<RecordSpec> all_specs() {
  std::vector<RecordSpec> specs;
  for (Record record : all_records()) specs.push_back(record_spec(record, 576));
  specs.push_back(record_spec(Record::kBf16, 512));
  return specs;
}

bool is_fp8(const RecordSpec& spec) { return spec.scales.rule == formats::ScaleRule::kPow2; }
bool is_fp4(const RecordSpec& spec) { return spec.segments[0].element == formats::Element::kE2m1; }

void expect_same_bytes(const RecordSpec& spec, const Row& row, int page, int n) {
  const Bytes bytes = encoded(spec, row, page, n);
  Bytes expected(bytes.size(), 0xEE);
  second::encode(spec.record, row.data(), spec.d, expected.data(), page, n);
  if (bytes == expected) return;
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(int{bytes[i]}, int{expected[i]})
        << record_name(spec.record) << " page " << page << " byte " << i;
  }
}

// Tests ------------------------------------------------------------------------------------------------

TEST(SecondArithmetic, ReadsAndRoundsEveryBf16) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const double value = value_of(static_cast<uint16_t>(bits));
    ASSERT_EQ(rounded(value), std::isnan(value) ? 0x7FC0 : bits);
  }
  EXPECT_EQ(rounded(1 + 1.0 / 256), 0x3F80);
  EXPECT_EQ(rounded(1 + 3.0 / 256), 0x3F82);
  EXPECT_EQ(rounded(std::ldexp(1.0, -134)), 0x0000);
  EXPECT_EQ(rounded(std::ldexp(511.0, 119)), 0x7F80);
}

TEST(Codec, SecondEncoderAgreesOnEveryMagnitude) {
  std::mt19937 random(11);
  for (const RecordSpec& spec : all_specs()) {
    for (int power = -42; power <= 38; ++power) {
      expect_same_bytes(spec, random_row(random, spec.d, std::pow(10.0, power)), 1, 0);
    }
  }
}

TEST(Codec, SecondEncoderAgreesOnMixedRowsAndPages) {
  std::mt19937 random(12);
  for (const RecordSpec& spec : all_specs()) {
    for (int i = 0; i < 60; ++i) {
      for (auto [page, n] : {std::pair{1, 0}, {2, 1}, {3, 0}, {64, 63}}) {
        expect_same_bytes(spec, mixed_row(random, spec.d, i % 2 == 1), page, n);
      }
    }
  }
}

// Columns exactly between two codes, under scales that the group's first column fixes.
TEST(Codec, SecondEncoderAgreesOnTies) {
  std::mt19937 random(13);
  for (const RecordSpec& spec : all_specs()) {
    const std::vector<double>& values = is_fp4(spec) ? e2m1_values() : e4m3_values();
    const double top = values.back();
    for (int i = 0; i < 60; ++i) {
      Row row(spec.d);
      for (int first = 0; first < spec.d; first += 16) {
        // For fp4 the largest is 6 times a e4m3 number: that number becomes the scale.
        const double scale = is_fp4(spec) ? e4m3_values()[1 + random() % 126] : std::ldexp(1.0, i % 30 - 13);
        for (int k = 0; k < 16; ++k) {
          const size_t code = random() % (values.size() - 1);
          const double tie = k == 0 ? top : (values[code] + values[code + 1]) / 2;
          row[first + k] = rounded((random() % 2 == 0 ? tie : -tie) * scale);
        }
      }
      expect_same_bytes(spec, row, 1, 0);
    }
  }
}

// The largest magnitude at, just under and just above each point where the scale changes.
TEST(Codec, SecondEncoderAgreesWhereTheScaleChanges) {
  std::mt19937 random(14);
  for (const RecordSpec& spec : all_specs()) {
    std::vector<double> limits;
    if (is_fp4(spec)) {
      for (int code = 0; code < 126; ++code) {
        limits.push_back(6 * e4m3_values()[code]);
        limits.push_back(3 * (e4m3_values()[code] + e4m3_values()[code + 1]));
      }
      limits.push_back(6 * 448.0);
    } else {
      for (int e = -16; e <= 119; ++e) limits.push_back(std::ldexp(448.0, e));
    }
    for (double limit : limits) {
      for (int step : {-1, 0, 1}) {
        const auto amax = static_cast<uint16_t>(rounded(limit) + step);
        if (amax > 0x7F7F) continue;
        Row row = random_row(random, spec.d, limit / 8);
        for (uint16_t& x : row) x = (x & 0x7FFF) > amax ? amax : x;
        for (int first = 0; first < spec.d; first += 16) row[first] = amax;
        expect_same_bytes(spec, row, 1, 0);
      }
    }
  }
}

TEST(Codec, ErrorsStayWithinTheElementTypesSpacing) {
  std::mt19937 random(15);
  for (const RecordSpec& spec : all_specs()) {
    for (int i = 0; i < 100; ++i) {
      const Row row = mixed_row(random, spec.d, false);
      const Row back = decoded(spec, encoded(spec, row));
      for (int k = 0; k < spec.num_segments; ++k) {
        const formats::Segment& segment = spec.segments[k];
        const bool grouped = segment.scaled || segment.through_groups;
        for (int c = segment.first; c < segment.first + segment.columns; ++c) {
          const double x = value_of(row[c]);
          const double error = std::fabs(value_of(back[c]) - x);
          if (!grouped) {
            // A copy, or e4m3 as it is: half a unit of a mantissa of three bits, or of the subnormals.
            const double bound = segment.element == formats::Element::kBf16
                                     ? 0
                                     : std::max({std::fabs(x) / 16, 1 / 1024.0, std::fabs(x) - 448});
            ASSERT_LE(error, bound) << record_name(spec.record) << " column " << c;
            continue;
          }
          const int group = spec.scales.group;
          const int start = segment.first + (c - segment.first) / group * group;
          const double amax = largest(&row[start], group);
          if (is_fp8(spec) && std::fabs(x) >= kRoundsToInfinity) {
            ASSERT_EQ(value_of(back[c]), std::copysign(kInf, x));
          } else if (is_fp8(spec)) {
            ASSERT_LE(error, std::max(std::fabs(x) / 16, std::ldexp(1.0, pow2_exponent(amax) - 10)));
          } else {
            const double scale =
                e4m3_values()[fp4_scale_code(amax, spec.scales.rule == formats::ScaleRule::kE4m3Up)];
            const double a = std::fabs(x) / scale;
            if (a > 6) {
              ASSERT_EQ(value_of(back[c]), std::copysign(6 * scale, x)) << record_name(spec.record);
            } else {
              ASSERT_LE(error, (a <= 2 ? 0.25 : a <= 4 ? 0.5 : 1.0) * scale) << record_name(spec.record);
            }
          }
        }
      }
    }
  }
}

TEST(Codec, ScalingARowByAPowerOfTwoScalesWhatComesBack) {
  std::mt19937 random(16);
  for (const RecordSpec& spec : all_specs()) {
    const int columns = spec.segments[0].columns;
    for (int i = 0; i < 20; ++i) {
      Row row(spec.d);  // magnitudes 1 to 2: scales are away from their floor, rounding is relative
      for (uint16_t& x : row) x = static_cast<uint16_t>(0x3F80 | (random() & 0x807F));
      const Row back = decoded(spec, encoded(spec, row));
      for (int shift : {1, 3, 8}) {
        if (is_fp4(spec) && shift == 3) shift = -3;
        Row scaled = row;
        for (uint16_t& x : scaled) x = static_cast<uint16_t>(x + shift * 128);
        const Row back_scaled = decoded(spec, encoded(spec, scaled));
        for (int c = 0; c < columns; ++c) {
          ASSERT_EQ(value_of(back_scaled[c]), std::ldexp(value_of(back[c]), shift))
              << record_name(spec.record);
        }
      }
    }
  }
}

TEST(Codec, NegatingARowNegatesWhatComesBack) {
  std::mt19937 random(17);
  for (const RecordSpec& spec : all_specs()) {
    for (int i = 0; i < 50; ++i) {
      Row row = mixed_row(random, spec.d, false);
      for (uint16_t& x : row) x = (x & 0x7FFF) == 0 ? 0x3F80 : x;
      Row negated = row;
      for (uint16_t& x : negated) x ^= 0x8000;
      const Row back = decoded(spec, encoded(spec, row));
      const Row back_negated = decoded(spec, encoded(spec, negated));
      for (int c = 0; c < spec.d; ++c)
        ASSERT_EQ(back_negated[c], back[c] ^ 0x8000) << record_name(spec.record);
    }
  }
}

TEST(Codec, WhatAnFp8RecordGivesItTakesBackUnchanged) {
  std::mt19937 random(18);
  for (const RecordSpec& spec : all_specs()) {
    if (!is_fp8(spec)) continue;
    for (int i = 0; i < 50; ++i) {
      Row row = mixed_row(random, spec.d, false);
      for (uint16_t& x : row) x = std::fabs(value_of(x)) >= kRoundsToInfinity ? 0x7F77 : x;
      const Row once = decoded(spec, encoded(spec, row));
      ASSERT_EQ(decoded(spec, encoded(spec, once)), once) << record_name(spec.record);
    }
  }
}

TEST(Codec, ZeroRowsHaveTheSmallestScaleAndComeBackAsZero) {
  for (const RecordSpec& spec : all_specs()) {
    const Bytes bytes = encoded(spec, Row(spec.d, 0));
    EXPECT_EQ(decoded(spec, bytes), Row(spec.d, 0)) << record_name(spec.record);
    const uint8_t* scales = formats::plane_row(bytes.data(), 1, spec, spec.scales.plane, 0);
    for (int s = 0; s < formats::num_scales(spec); ++s) {
      const uint8_t* scale = scales + formats::scale_offset(spec.scales, s);
      if (spec.scales.type == formats::ScaleType::kFp32) {
        EXPECT_EQ(formats::load_u32(scale), 0x39000000u);  // 2^-13
      } else {
        EXPECT_EQ(*scale, is_fp8(spec) ? 114 : 1) << record_name(spec.record);
      }
    }
  }
}

// -0.0 keeps its sign in e4m3 and bf16 columns and loses it in e2m1; the smallest subnormal keeps it in all.
TEST(Codec, SignsOfZerosAndSubnormals) {
  for (const RecordSpec& spec : all_specs()) {
    const Row zeros = decoded(spec, encoded(spec, Row(spec.d, 0x8000)));
    const Row tiny = decoded(spec, encoded(spec, Row(spec.d, 0x8001)));
    for (int k = 0; k < spec.num_segments; ++k) {
      const formats::Segment& segment = spec.segments[k];
      const bool fp4 = segment.element == formats::Element::kE2m1 || segment.through_groups;
      const bool copied = segment.element == formats::Element::kBf16 && !segment.through_groups;
      for (int c = segment.first; c < segment.first + segment.columns; ++c) {
        ASSERT_EQ(zeros[c], fp4 ? 0x0000 : 0x8000) << record_name(spec.record);
        ASSERT_EQ(tiny[c], copied ? 0x8001 : 0x8000) << record_name(spec.record);
      }
    }
  }
}

TEST(Codec, NanAndInfinityPoisonTheirGroupAlone) {
  std::mt19937 random(19);
  for (const RecordSpec& spec : all_specs()) {
    const Row row = random_row(random, spec.d, 1.0);
    const Row clean = decoded(spec, encoded(spec, row));
    for (uint16_t poison : {0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0x7F81}) {
      for (int c = 0; c < spec.d; ++c) {
        Row bad = row;
        bad[c] = poison;
        const Row back = decoded(spec, encoded(spec, bad));
        const formats::Segment& segment = spec.segments[c < spec.segments[0].columns ? 0 : 1];
        const bool grouped = segment.scaled || segment.through_groups;
        const int size = grouped ? spec.scales.group : 1;
        const int start = segment.first + (c - segment.first) / size * size;
        for (int i = 0; i < spec.d; ++i) {
          if (i < start || i >= start + size) {
            ASSERT_EQ(back[i], clean[i]) << record_name(spec.record) << " column " << i;
          } else if (grouped) {
            ASSERT_EQ(back[i], 0x7FC0) << record_name(spec.record) << " column " << i;
          } else if (segment.element == formats::Element::kBf16) {
            ASSERT_EQ(back[i], poison) << record_name(spec.record) << " column " << i;
          } else {
            const bool infinite = (poison & 0x7FFF) == 0x7F80;
            ASSERT_EQ(back[i], infinite ? (poison & 0x8000) | 0x43E0 : 0x7FC0) << "column " << i;
          }
        }
      }
    }
  }
}

TEST(Codec, CodesOfAPoisonedGroupAreZerosWithTheirSigns) {
  Row row(512, 0x3F80);
  row[0] = 0x7FC0;
  row[1] = 0xBF80;
  row[2] = 0x8000;
  row[3] = 0xFFC0;
  row[4] = 0xFF80;
  const Bytes fp8 = encoded(record_spec(Record::kV41Fp8), row);
  EXPECT_EQ(Bytes(fp8.begin(), fp8.begin() + 6), (Bytes{0x00, 0x80, 0x80, 0x80, 0x80, 0x00}));
  EXPECT_EQ(fp8[512], 0xFF);
  const Bytes fp4 = encoded(record_spec(Record::kV41Fp4), row);
  EXPECT_EQ(Bytes(fp4.begin(), fp4.begin() + 3), (Bytes{0x80, 0x88, 0x08}));
  EXPECT_EQ(fp4[256], 0x7F);
  const Bytes fp32 = encoded(record_spec(Record::kV32NopeFp8), row);
  EXPECT_EQ(Bytes(fp32.begin(), fp32.begin() + 6), (Bytes{0x00, 0x80, 0x80, 0x80, 0x80, 0x00}));
  EXPECT_EQ(Bytes(fp32.begin() + 512, fp32.begin() + 516), (Bytes{0x00, 0x00, 0xC0, 0x7F}));
}

TEST(Codec, LargeValuesSaturateInFp4) {
  for (const RecordSpec& spec : all_specs()) {
    if (!is_fp4(spec)) continue;
    const Row back = decoded(spec, encoded(spec, Row(spec.d, 0xFF7F)));
    for (int c = 0; c < spec.d; ++c) {
      const bool unscaled = spec.record == Record::kV32Nvfp4 && c >= 512;
      ASSERT_EQ(value_of(back[c]), unscaled ? -448 : -2688) << record_name(spec.record) << " column " << c;
    }
  }
}

// Rounding up never saturates; rounding to nearest may, by less than the scale's own rounding.
TEST(Codec, RoundedUpScaleCoversTheLargest) {
  std::mt19937 random(20);
  const RecordSpec spec = record_spec(Record::kV32Nvfp4);
  for (int i = 0; i < 200; ++i) {
    const Row row = random_row(random, 576, std::pow(10.0, i % 6 - 3));
    const Bytes bytes = encoded(spec, row);
    for (int s = 0; s < 32; ++s) {
      const double amax = largest(&row[16 * s], 16);
      if (amax > 2688) continue;
      const double scale = e4m3_value(bytes[320 + s % 4 * 8 + s / 4]);
      ASSERT_GE(scale * 6, amax);
      if (scale > std::ldexp(1.0, -9)) {
        ASSERT_LT(e4m3_value(bytes[320 + s % 4 * 8 + s / 4] - 1) * 6, amax);
      }
    }
  }
}

TEST(Codec, EveryUe8m0ScaleTimesEveryCodeIsRoundedOnce) {
  const RecordSpec spec = record_spec(Record::kV41Fp8);
  for (int scale = 0; scale < 256; ++scale) {
    const double s = scale == 255 ? std::nan("") : std::ldexp(1.0, scale - 127);
    Bytes bytes(528, static_cast<uint8_t>(scale));
    for (int code = 0; code < 256; ++code) bytes[code] = bytes[256 + code] = static_cast<uint8_t>(code);
    const Row row = decoded(spec, bytes);
    for (int c = 0; c < 512; ++c) {
      const double product = e4m3_value(c % 256) * s;
      ASSERT_EQ(row[c], rounded(product)) << "scale " << scale << " code " << c % 256;
      if (scale >= 3 && scale <= 246 && !std::isnan(product)) {
        ASSERT_EQ(value_of(row[c]), product) << "exact in bf16";
      }
    }
  }
}

TEST(Codec, EveryE4m3ScaleTimesEveryCodeIsExact) {
  for (Record record : {Record::kV41Fp4, Record::kV41Fp4Row, Record::kV41MainFp4, Record::kV32Nvfp4}) {
    const RecordSpec spec = record_spec(record);
    for (int scale = 0; scale < 256; ++scale) {
      Bytes bytes(formats::token_bytes(spec), static_cast<uint8_t>(scale));
      for (int i = 0; i < spec.segments[0].columns / 2; ++i) bytes[i] = static_cast<uint8_t>(i);
      const Row row = decoded(spec, bytes);
      for (int c = 0; c < spec.segments[0].columns; ++c) {
        const int byte = c / 2 % 256;
        const double product = e2m1_value(c % 2 == 0 ? byte % 16 : byte / 16) * e4m3_value(scale);
        ASSERT_EQ(row[c], rounded(product)) << record_name(record) << " scale " << scale << " column " << c;
        ASSERT_TRUE(std::isnan(product) || value_of(row[c]) == product);
      }
    }
  }
}

// The product is an fp32 number first: 28 bits become 24, then 8.
TEST(Codec, EveryKindOfFp32ScaleTimesEveryCode) {
  std::mt19937 random(21);
  const RecordSpec spec = record_spec(Record::kV32NopeFp8);
  std::vector<uint32_t> scales = {0x00000000, 0x80000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF,
                                  0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0xBF800000};
  for (int i = 0; i < 2000; ++i) scales.push_back(static_cast<uint32_t>(random()));
  for (uint32_t bits : scales) {
    float scale = 0;
    std::memcpy(&scale, &bits, 4);
    Bytes bytes(528);
    for (int c = 0; c < 512; ++c) bytes[c] = static_cast<uint8_t>(c / 2);
    for (int s = 0; s < 4; ++s) std::memcpy(&bytes[512 + 4 * s], &bits, 4);
    const Row row = decoded(spec, bytes);
    for (int c = 0; c < 512; ++c) {
      const auto product = static_cast<float>(e4m3_value(c / 2) * static_cast<double>(scale));
      ASSERT_EQ(row[c], rounded(product)) << std::hex << "scale " << bits << " code " << c / 2;
    }
  }
}

TEST(Codec, WorksAtCompileTime) {
  constexpr auto kFirstCode = [] {
    BF16 x[512] = {};
    x[0] = {0x3F80};
    uint8_t bytes[528] = {};
    encode_row(record_spec(Record::kV41Fp8), x, bytes, 1, 0);
    return bytes[0];
  }();
  EXPECT_EQ(kFirstCode, 0x78);  // 1 / 2^-8: 1/448 lies between 2^-9 and 2^-8
}

}  // namespace
}  // namespace tilewise
