// The pages written by hand decode to their listed values, and encoding the listed values gives the bytes.
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
#include "tests/format/golden_pages.h"
#include "tilewise/kv_format.h"

namespace tilewise {
namespace {

using formats::decode_row;
using formats::encode_row;
using formats::plane_row;
using formats::record_spec;
using formats::RecordSpec;
using namespace golden;

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
