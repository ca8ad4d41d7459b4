// Pages written by hand, byte by byte, for every record, and the values that they mean. No number here comes
// from the library.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tilewise/kv_format.h"

namespace tilewise::golden {

inline constexpr uint8_t kPoison = 0xEE;
inline constexpr int kPage = 3;
using Bytes = std::vector<uint8_t>;
using Values = std::vector<float>;

// The bf16 bits of a value that bf16 has.
inline uint16_t exact_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  EXPECT_EQ(bits & 0xFFFFu, 0u) << value << " is not a bf16";
  return static_cast<uint16_t>(bits >> 16);
}

// A token's columns as bf16 bits and its bytes in the page, both written by the cases below.
struct Token {
  std::vector<uint16_t> columns;
  int place = 0;

  // Repeats the cycle over n columns.
  void add(const Values& cycle, int n) {
    for (int i = 0; i < n; ++i) columns.push_back(exact_bf16(cycle[i % cycle.size()]));
  }
  void add_bits(const std::vector<uint16_t>& cycle, int n) {
    for (int i = 0; i < n; ++i) columns.push_back(cycle[i % cycle.size()]);
  }
};

inline void put(Bytes& page, int at, const Bytes& cycle, int n) {
  for (int i = 0; i < n; ++i) page.at(at + i) = cycle[i % cycle.size()];
}

// One scale, codes under it and the values they mean. The scale is the one that the quantiser chooses.
struct Fp8Group {
  Bytes fp32;
  uint8_t ue8m0;
  Bytes codes;
  Values values;
};
inline const Fp8Group kFp8Groups[] = {
    {{0x00, 0x00, 0x00, 0x39},
     114,
     {0x7E, 0x38, 0x01, 0x80},
     {0.0546875f, 0.0001220703125f, 0x1p-22f, -0.0f}},
    {{0x00, 0x00, 0x80, 0x3F}, 127, {0x7E, 0x77, 0xBC, 0x01}, {448.0f, 240.0f, -1.5f, 0.001953125f}},
    {{0x00, 0x00, 0x00, 0x3C}, 120, {0x78, 0xF0, 0x7E, 0x38}, {2.0f, -1.0f, 3.5f, 0.0078125f}},
    {{0x00, 0x00, 0x00, 0x42}, 132, {0x7E, 0x38, 0xBC, 0x00}, {14336.0f, 32.0f, -48.0f, 0.0f}},
};

struct Fp4Group {
  uint8_t e4m3;
  Bytes codes;
  Values values;
};
inline const Fp4Group kFp4Groups[] = {
    {0x38, {0x17, 0x0A, 0xF3, 0x54}, {6.0f, 0.5f, -1.0f, 0.0f, 1.5f, -6.0f, 2.0f, 3.0f}},
    {0x01, {0x96, 0x42}, {0.0078125f, -0.0009765625f, 0.001953125f, 0.00390625f}},
    {0x7E, {0x97, 0xD0}, {2688.0f, -224.0f, 0.0f, -1344.0f}},
    {0x3C, {0x3F, 0x61}, {-9.0f, 2.25f, 0.75f, 6.0f}},
    {0x08, {0x75, 0x2B}, {0.046875f, 0.09375f, -0.0234375f, 0.015625f}},
};

// Which group stands where; no period, so that a shifted or permuted scale shows.
inline const int kFp8Order[] = {0, 1, 2, 3, 1, 0, 3, 2, 2, 2, 0, 1, 3, 3, 1, 0};
inline const int kFp4Order[] = {0, 1, 2, 3, 4, 1, 0, 4, 2, 3, 3, 3, 0, 4, 4, 1,
                                2, 2, 0, 1, 4, 3, 1, 1, 0, 0, 2, 4, 3, 0, 1, 2};
// Place of the scale of group s in v32_nvfp4.
inline const int kNvfp4Places[] = {0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
                                   4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
// One, -3.140625, the smallest subnormal, inf, a signalling NaN, -0.0, the largest, a quiet NaN with its
// sign.
inline const std::vector<uint16_t> kRope = {0x3F80, 0xC049, 0x0001, 0x7F80, 0x7F81, 0x8000, 0x7F7F, 0xFFC1};
inline const Bytes kRopeBytes = {0x80, 0x3F, 0x49, 0xC0, 0x01, 0x00, 0x80, 0x7F,
                                 0x81, 0x7F, 0x00, 0x80, 0x7F, 0x7F, 0xC1, 0xFF};

// Groups for token 0 and for token 2 (taken from the other end).
inline const Fp8Group& fp8_group(int token, int s) { return kFp8Groups[kFp8Order[token == 0 ? s : 15 - s]]; }
inline const Fp4Group& fp4_group(int token, int s) { return kFp4Groups[kFp4Order[token == 0 ? s : 31 - s]]; }

struct Golden {
  Record record;
  Bytes page;
  std::vector<Token> tokens;
};

inline Golden golden(Record record, int bytes) {
  return {record, Bytes(kPage * bytes, kPoison), {{{}, 0}, {{}, 2}}};
}

inline Golden v32_fp8_like(Record record, int bytes) {
  Golden g = golden(record, bytes);
  for (Token& token : g.tokens) {
    const int at = token.place * bytes;
    for (int s = 0; s < 4; ++s) {
      const Fp8Group& group = fp8_group(token.place, s);
      put(g.page, at + 128 * s, group.codes, 128);
      put(g.page, at + 512 + 4 * s, group.fp32, 4);
      token.add(group.values, 128);
    }
    if (record == Record::kV32Fp8) {
      put(g.page, at + 528, kRopeBytes, 128);
      token.add_bits(kRope, 64);
    }
  }
  return g;
}

inline Golden v4_fp8() {
  Golden g = golden(Record::kV4Fp8, 584);
  for (Token& token : g.tokens) {
    const int data = token.place == 0 ? 0 : 1152;
    const int scales = token.place == 0 ? 1728 : 1744;
    for (int s = 0; s < 7; ++s) {
      const Fp8Group& group = fp8_group(token.place, s);
      put(g.page, data + 64 * s, group.codes, 64);
      g.page.at(scales + s) = group.ue8m0;
      token.add(group.values, 64);
    }
    g.page.at(scales + 7) = 0;
    put(g.page, data + 448, kRopeBytes, 128);
    token.add_bits(kRope, 64);
  }
  return g;
}

inline Golden v41_fp8(Record record) {
  Golden g = golden(record, 528);
  const bool token_major = record == Record::kV41Fp8Row;
  for (Token& token : g.tokens) {
    const int data = token.place == 0 ? 0 : token_major ? 1056 : 1024;
    const int scales = token_major ? data + 512 : token.place == 0 ? 1536 : 1568;
    for (int s = 0; s < 16; ++s) {
      const Fp8Group& group = fp8_group(token.place, s);
      put(g.page, data + 32 * s, group.codes, 32);
      g.page.at(scales + s) = group.ue8m0;
      token.add(group.values, 32);
    }
  }
  return g;
}

inline Golden v41_fp4(Record record) {
  Golden g = golden(record, 288);
  const bool token_major = record == Record::kV41Fp4Row;
  for (Token& token : g.tokens) {
    const int data = token.place == 0 ? 0 : token_major ? 576 : 512;
    const int scales = token_major ? data + 256 : token.place == 0 ? 768 : 832;
    for (int s = 0; s < 32; ++s) {
      const Fp4Group& group = fp4_group(token.place, s);
      put(g.page, data + 8 * s, group.codes, 8);
      g.page.at(scales + s) = group.e4m3;
      token.add(group.values, 16);
    }
  }
  return g;
}

inline Golden v41_main_fp4() {
  Golden g = golden(Record::kV41MainFp4, 384);
  for (Token& token : g.tokens) {
    const int data = token.place == 0 ? 0 : 448;
    const int scales = token.place == 0 ? 672 : 736;
    const int rope = token.place == 0 ? 768 : 1024;
    for (int s = 0; s < 28; ++s) {
      const Fp4Group& group = fp4_group(token.place, s);
      put(g.page, data + 8 * s, group.codes, 8);
      g.page.at(scales + s) = group.e4m3;
      token.add(group.values, 16);
    }
    put(g.page, scales + 28, {0}, 4);
    // 6, 0.5, -1, 0, 1.5, -6, 2, 3; then 2688, -224, 0, -1344; then -9, 2.25, 0.75, 6; then 6, ... again.
    const Bytes first = {0xC0, 0x40, 0x00, 0x3F, 0x80, 0xBF, 0x00, 0x00,
                         0xC0, 0x3F, 0xC0, 0xC0, 0x00, 0x40, 0x40, 0x40};
    const Bytes second = {0x28, 0x45, 0x60, 0xC3, 0x00, 0x00, 0xA8, 0xC4};
    const Bytes third = {0x10, 0xC1, 0x10, 0x40, 0x40, 0x3F, 0xC0, 0x40};
    put(g.page, rope, first, 32);
    put(g.page, rope + 32, second, 32);
    put(g.page, rope + 64, third, 32);
    put(g.page, rope + 96, first, 32);
    for (int group : {0, 2, 3, 0}) token.add(kFp4Groups[group].values, 16);
  }
  return g;
}

inline Golden v32_nvfp4() {
  Golden g = golden(Record::kV32Nvfp4, 352);
  for (Token& token : g.tokens) {
    const int at = token.place == 0 ? 0 : 704;
    for (int s = 0; s < 32; ++s) {
      const Fp4Group& group = fp4_group(token.place, s);
      put(g.page, at + 8 * s, group.codes, 8);
      g.page.at(at + 320 + kNvfp4Places[s]) = group.e4m3;
      token.add(group.values, 16);
    }
    put(g.page, at + 256, {0x38, 0xBC, 0x01, 0x7E, 0x80, 0x00, 0x40, 0xFE}, 64);
    token.add({1.0f, -1.5f, 0.001953125f, 448.0f, -0.0f, 0.0f, 2.0f, -448.0f}, 64);
  }
  return g;
}

inline Golden bf16(int d) {
  Golden g = golden(Record::kBf16, 2 * d);
  for (Token& token : g.tokens) {
    put(g.page, token.place == 0 ? 0 : 4 * d, kRopeBytes, 2 * d);
    token.add_bits(kRope, d);
  }
  return g;
}

inline std::vector<Golden> all_goldens() {
  return {v32_fp8_like(Record::kV32Fp8, 656),
          v32_fp8_like(Record::kV32NopeFp8, 528),
          v4_fp8(),
          v41_fp8(Record::kV41Fp8),
          v41_fp4(Record::kV41Fp4),
          v41_fp8(Record::kV41Fp8Row),
          v41_fp4(Record::kV41Fp4Row),
          v41_main_fp4(),
          v32_nvfp4(),
          bf16(576),
          bf16(512)};
}

}  // namespace tilewise::golden
