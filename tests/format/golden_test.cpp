// Pages written by hand, byte by byte, for every record: they decode to listed values, and encoding the
// listed values gives the bytes. No number here comes from the library.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "formats/codec.h"
#include "tilewise/kv_format.h"

namespace tilewise {
namespace {

using formats::decode_row;
using formats::encode_row;
using formats::plane_row;
using formats::record_spec;
using formats::RecordSpec;

constexpr uint8_t kPoison = 0xEE;
constexpr int kPage = 3;
using Bytes = std::vector<uint8_t>;
using Values = std::vector<float>;

// The bf16 bits of a value that bf16 has.
uint16_t exact_bf16(float value) {
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

void put(Bytes& page, int at, const Bytes& cycle, int n) {
  for (int i = 0; i < n; ++i) page.at(at + i) = cycle[i % cycle.size()];
}

// One scale, codes under it and the values they mean. The scale is the one that the quantiser chooses.
struct Fp8Group {
  Bytes fp32;
  uint8_t ue8m0;
  Bytes codes;
  Values values;
};
const Fp8Group kFp8Groups[] = {
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
const Fp4Group kFp4Groups[] = {
    {0x38, {0x17, 0x0A, 0xF3, 0x54}, {6.0f, 0.5f, -1.0f, 0.0f, 1.5f, -6.0f, 2.0f, 3.0f}},
    {0x01, {0x96, 0x42}, {0.0078125f, -0.0009765625f, 0.001953125f, 0.00390625f}},
    {0x7E, {0x97, 0xD0}, {2688.0f, -224.0f, 0.0f, -1344.0f}},
    {0x3C, {0x3F, 0x61}, {-9.0f, 2.25f, 0.75f, 6.0f}},
    {0x08, {0x75, 0x2B}, {0.046875f, 0.09375f, -0.0234375f, 0.015625f}},
};

// Which group stands where; no period, so that a shifted or permuted scale shows.
const int kFp8Order[] = {0, 1, 2, 3, 1, 0, 3, 2, 2, 2, 0, 1, 3, 3, 1, 0};
const int kFp4Order[] = {0, 1, 2, 3, 4, 1, 0, 4, 2, 3, 3, 3, 0, 4, 4, 1,
                         2, 2, 0, 1, 4, 3, 1, 1, 0, 0, 2, 4, 3, 0, 1, 2};
// Place of the scale of group s in v32_nvfp4.
const int kNvfp4Places[] = {0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
                            4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
// One, -3.140625, the smallest subnormal, inf, a signalling NaN, -0.0, the largest, a quiet NaN with its
// sign.
const std::vector<uint16_t> kRope = {0x3F80, 0xC049, 0x0001, 0x7F80, 0x7F81, 0x8000, 0x7F7F, 0xFFC1};
const Bytes kRopeBytes = {0x80, 0x3F, 0x49, 0xC0, 0x01, 0x00, 0x80, 0x7F,
                          0x81, 0x7F, 0x00, 0x80, 0x7F, 0x7F, 0xC1, 0xFF};

// Groups for token 0 and for token 2 (taken from the other end).
const Fp8Group& fp8_group(int token, int s) { return kFp8Groups[kFp8Order[token == 0 ? s : 15 - s]]; }
const Fp4Group& fp4_group(int token, int s) { return kFp4Groups[kFp4Order[token == 0 ? s : 31 - s]]; }

struct Golden {
  Record record;
  Bytes page;
  std::vector<Token> tokens;
};

Golden golden(Record record, int bytes) {
  return {record, Bytes(kPage * bytes, kPoison), {{{}, 0}, {{}, 2}}};
}

Golden v32_fp8_like(Record record, int bytes) {
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

Golden v4_fp8() {
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

Golden v41_fp8(Record record) {
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

Golden v41_fp4(Record record) {
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

Golden v41_main_fp4() {
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

Golden v32_nvfp4() {
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

Golden bf16(int d) {
  Golden g = golden(Record::kBf16, 2 * d);
  for (Token& token : g.tokens) {
    put(g.page, token.place == 0 ? 0 : 4 * d, kRopeBytes, 2 * d);
    token.add_bits(kRope, d);
  }
  return g;
}

std::vector<Golden> all_goldens() {
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

RecordSpec spec_of(const Golden& g) {
  return record_spec(g.record, static_cast<int32_t>(g.tokens[0].columns.size()));
}

std::vector<uint16_t> decoded(const RecordSpec& spec, const Bytes& page, int64_t page_size, int64_t token) {
  std::vector<BF16> row(spec.d);
  decode_row(spec, page.data(), page_size, token, row.data());
  std::vector<uint16_t> bits;
  for (BF16 x : row) bits.push_back(x.bits);
  return bits;
}

std::vector<BF16> as_bf16(const std::vector<uint16_t>& bits) {
  std::vector<BF16> row;
  for (uint16_t b : bits) row.push_back({b});
  return row;
}

TEST(Golden, CoversEveryRecord) {
  std::vector<int> seen(all_records().size());
  for (const Golden& g : all_goldens()) ++seen.at(static_cast<size_t>(g.record));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_GE(seen[i], 1) << record_name(static_cast<Record>(i));
}

TEST(Golden, PageDecodesToTheListedValues) {
  for (const Golden& g : all_goldens()) {
    for (const Token& token : g.tokens) {
      EXPECT_EQ(decoded(spec_of(g), g.page, kPage, token.place), token.columns)
          << record_name(g.record) << " token " << token.place;
    }
  }
}

TEST(Golden, ListedValuesEncodeToThePage) {
  for (const Golden& g : all_goldens()) {
    Bytes page(g.page.size(), kPoison);  // token 1 stays so
    for (const Token& token : g.tokens) {
      encode_row(spec_of(g), as_bf16(token.columns).data(), page.data(), kPage, token.place);
    }
    EXPECT_EQ(page, g.page) << record_name(g.record);
  }
}

TEST(Golden, PaddingIsNotRead) {
  Golden v4 = v4_fp8();
  Golden main = v41_main_fp4();
  v4.page.at(1735) = v4.page.at(1751) = 0xFF;
  for (int at : {700, 701, 702, 703, 764, 765, 766, 767}) main.page.at(at) = 0x7F;
  for (const Golden& g : {v4, main}) {
    for (const Token& token : g.tokens) {
      EXPECT_EQ(decoded(spec_of(g), g.page, kPage, token.place), token.columns) << record_name(g.record);
    }
  }
}

TEST(Golden, ScalesThatNoQuantiserChoosesAreReadAsTheyAre) {
  Golden g = v32_fp8_like(Record::kV32Fp8, 656);
  put(g.page, 512, {0x00, 0x00, 0x40, 0xC0}, 4);  // -3
  put(g.page, 516, {0x00, 0x00, 0xC0, 0xFF}, 4);  // NaN
  put(g.page, 520, {0xCD, 0xCC, 0xCC, 0x3D}, 4);  // 0.1
  put(g.page, 524, {0x00, 0x00, 0x80, 0x7F}, 4);  // inf
  const auto fp32 = decoded(record_spec(Record::kV32Fp8), g.page, kPage, 0);
  EXPECT_EQ(fp32[0], exact_bf16(-1344.0f));
  EXPECT_EQ(fp32[3], 0x0000);  // -0 * -3
  EXPECT_EQ(fp32[128], 0x7FC0);
  EXPECT_EQ(fp32[256], 0x41CD);  // 256 * 0.1 = 25.6 -> 25.625
  EXPECT_EQ(fp32[384], 0x7F80);
  EXPECT_EQ(fp32[386], 0xFF80);
  EXPECT_EQ(fp32[387], 0x7FC0);  // 0 * inf

  Golden v41 = v41_fp8(Record::kV41Fp8);
  v41.page.at(1536) = 0;    // 2^-127
  v41.page.at(1537) = 255;  // NaN
  v41.page.at(1538) = 254;  // 2^127
  const auto ue8m0 = decoded(record_spec(Record::kV41Fp8), v41.page, kPage, 0);
  EXPECT_EQ(ue8m0[0], exact_bf16(0x1.Cp-119f));
  EXPECT_EQ(ue8m0[1], exact_bf16(0x1p-127f));
  EXPECT_EQ(ue8m0[2], 0x0000);  // 2^-136
  EXPECT_EQ(ue8m0[32], 0x7FC0);
  EXPECT_EQ(ue8m0[64], 0x7F80);
  EXPECT_EQ(ue8m0[67], 0x7F00);  // 1 * 2^127

  Golden fp4 = v41_fp4(Record::kV41Fp4);
  fp4.page.at(768) = 0xC0;  // -2
  fp4.page.at(769) = 0xFF;  // NaN
  fp4.page.at(770) = 0x00;  // 0
  fp4.page.at(0) = 0x80;    // 0 and -0
  const auto e4m3 = decoded(record_spec(Record::kV41Fp4), fp4.page, kPage, 0);
  EXPECT_EQ(e4m3[0], 0x8000);
  EXPECT_EQ(e4m3[1], 0x0000);
  EXPECT_EQ(e4m3[2], exact_bf16(2.0f));
  EXPECT_EQ(e4m3[16], 0x7FC0);
  EXPECT_EQ(e4m3[32], 0x0000);
  EXPECT_EQ(e4m3[33], 0x8000);
}

// Bytes a token of each plane, in the order of the ids.
const std::vector<std::vector<int>> kPlanes = {{656}, {528}, {576, 8},       {512, 16}, {256, 32},
                                               {528}, {288}, {224, 32, 128}, {352},     {1152}};

TEST(Layout, PlanesFollowEachOtherForEveryPageSize) {
  for (Record record : all_records()) {
    const RecordSpec spec = record_spec(record, 576);
    const auto& planes = kPlanes.at(static_cast<size_t>(record));
    ASSERT_EQ(static_cast<size_t>(spec.num_planes), planes.size()) << record_name(record);
    for (int page : {1, 2, 64}) {
      Bytes bytes(1);
      int start = 0;
      for (size_t p = 0; p < planes.size(); ++p) {
        for (int token = 0; token < page; ++token) {
          const uint8_t* row = plane_row(bytes.data(), page, spec, static_cast<int>(p), token);
          EXPECT_EQ(row - bytes.data(), start + token * planes[p]) << record_name(record) << " page " << page;
        }
        start += page * planes[p];
      }
    }
  }
}

TEST(Layout, EncodeWritesEveryByteOfItsTokenAndNoOther) {
  for (Record record : all_records()) {
    const RecordSpec spec = record_spec(record, 576);
    const auto& planes = kPlanes.at(static_cast<size_t>(record));
    const std::vector<BF16> row(spec.d, BF16{0x3F80});
    for (int page : {1, 2, 64}) {
      int size = 0;
      for (int bytes : planes) size += bytes * page;
      for (int token : {0, page / 2, page - 1}) {
        Bytes a(size, 0xEE);
        Bytes b(size, 0x11);
        encode_row(spec, row.data(), a.data(), page, token);
        encode_row(spec, row.data(), b.data(), page, token);
        Bytes expected(size, 0);
        int start = 0;
        for (int bytes : planes) {
          put(expected, start + token * bytes, {1}, bytes);
          start += bytes * page;
        }
        for (int i = 0; i < size; ++i) {
          const bool written = expected[i] == 1;
          ASSERT_EQ(a[i] == b[i], written) << record_name(record) << " page " << page << " byte " << i;
          ASSERT_TRUE(written || (a[i] == 0xEE && b[i] == 0x11)) << record_name(record) << " byte " << i;
        }
      }
    }
  }
}

TEST(Layout, PagesBeyondFourGigabytesAreAddressed) {
  constexpr int64_t kTokens = 10'000'000;  // 5.28 GB, of which three touched pages are backed by memory
  constexpr size_t kSize = 528 * static_cast<size_t>(kTokens);
  void* memory =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* page = static_cast<uint8_t*>(memory);
  const RecordSpec spec = record_spec(Record::kV41Fp8);
  std::vector<BF16> row(512, BF16{0x43E0});  // 448
  encode_row(spec, row.data(), page, kTokens, kTokens - 1);
  EXPECT_EQ(page[5'119'999'488], 0x7E);
  EXPECT_EQ(page[5'119'999'999], 0x7E);
  EXPECT_EQ(page[5'279'999'984], 127);
  EXPECT_EQ(page[5'279'999'999], 127);
  std::vector<BF16> back(512);
  decode_row(spec, page, kTokens, kTokens - 1, back.data());
  for (BF16 x : back) ASSERT_EQ(x.bits, 0x43E0);
  munmap(memory, kSize);
}

const char* const kNames[] = {"v32_fp8",     "v32_nope_fp8", "v4_fp8",       "v41_fp8",   "v41_fp4",
                              "v41_fp8_row", "v41_fp4_row",  "v41_main_fp4", "v32_nvfp4", "bf16"};
const int kDims[] = {576, 512, 512, 512, 512, 512, 512, 512, 576, 0};
const int kBytes[] = {656, 528, 584, 528, 288, 528, 288, 384, 352, 0};

TEST(Records, IdsNamesAndSizes) {
  ASSERT_EQ(all_records().size(), 10u);
  for (int id = 0; id < 10; ++id) {
    const auto record = static_cast<Record>(id);
    EXPECT_EQ(all_records()[id], record);
    EXPECT_STREQ(record_name(record), kNames[id]);
    EXPECT_EQ(record_from_name(kNames[id]), record);
    EXPECT_EQ(record_dim(record), kDims[id]);
    for (int64_t d : {int64_t{-512}, int64_t{0}, int64_t{64}, int64_t{512}, int64_t{576},
                      int64_t{512} + (int64_t{1} << 32)}) {
      int64_t expected = d == kDims[id] ? kBytes[id] : 0;
      if (record == Record::kBf16) expected = d == 512 ? 1024 : d == 576 ? 1152 : 0;
      EXPECT_EQ(record_bytes(record, d), expected) << kNames[id] << " d " << d;
    }
  }
  EXPECT_EQ(static_cast<int>(Record::kV32Nvfp4), 8);
  EXPECT_EQ(static_cast<int>(Record::kAuto), -1);
}

TEST(Records, ValuesThatAreNoRecord) {
  EXPECT_STREQ(record_name(Record::kAuto), "auto");
  for (int id : {-2, 10, 1000}) EXPECT_STREQ(record_name(static_cast<Record>(id)), "unknown");
  for (int id : {-2, -1, 10}) {
    EXPECT_EQ(record_dim(static_cast<Record>(id)), 0);
    EXPECT_EQ(record_bytes(static_cast<Record>(id), 512), 0);
    EXPECT_EQ(record_spec(static_cast<Record>(id), 512).num_planes, 0);
  }
  for (const char* name : {"", "auto", "unknown", "V32_FP8", "v32_fp8 ", "v32_fp", "v41_fp8_ro"}) {
    EXPECT_EQ(record_from_name(name), std::nullopt) << name;
  }
}

TEST(Records, InferredFromBytesAndDimension) {
  for (int64_t d :
       {int64_t{0}, int64_t{-1}, int64_t{128}, int64_t{511}, int64_t{512}, int64_t{576}, int64_t{640}}) {
    for (int64_t bytes = -2; bytes < 2400; ++bytes) {
      std::optional<Record> expected;
      if (d == 576 && bytes == 656) expected = Record::kV32Fp8;
      if (d == 576 && bytes == 352) expected = Record::kV32Nvfp4;
      if (d == 512 && bytes == 584) expected = Record::kV4Fp8;
      if (d == 512 && bytes == 384) expected = Record::kV41MainFp4;
      if (d == 512 && bytes == 288) expected = Record::kV41Fp4;
      if (d == 512 && bytes == 528) expected = Record::kV41Fp8;
      ASSERT_EQ(infer_record(bytes, d), expected) << bytes << " bytes, d " << d;
    }
  }
}

TEST(Records, PairsOfMainAndExtra) {
  using Pair = std::array<Record, 2>;
  const Pair allowed[] = {
      {Record::kV32Fp8, Record::kV32Fp8},       {Record::kV32NopeFp8, Record::kV32NopeFp8},
      {Record::kV4Fp8, Record::kV4Fp8},         {Record::kV41Fp8, Record::kV41Fp8},
      {Record::kV41Fp8Row, Record::kV41Fp8Row}, {Record::kV32Nvfp4, Record::kV32Nvfp4},
      {Record::kBf16, Record::kBf16},           {Record::kV41Fp8, Record::kV41Fp4},
      {Record::kV41Fp8Row, Record::kV41Fp4Row}, {Record::kV4Fp8, Record::kV41MainFp4}};
  for (int main = -2; main < 12; ++main) {
    for (int extra = -2; extra < 12; ++extra) {
      const Pair pair = {static_cast<Record>(main), static_cast<Record>(extra)};
      const bool expected = std::find(std::begin(allowed), std::end(allowed), pair) != std::end(allowed);
      EXPECT_EQ(record_pair_allowed(pair[0], pair[1]), expected) << main << " with " << extra;
    }
  }
}

}  // namespace
}  // namespace tilewise
