// The oracle's decoder and encoder of cache records against bytes and values listed here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "reference/dequant.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::after_append;
using reference::after_quantize;
using reference::decode_token;
using reference::dequantized;
using reference::encode_token;
using reference::Pages;
using reference::pages_of;
using reference::resolve_record;
using ::testing::Each;

constexpr int64_t kPage = 3;
constexpr uint16_t kNanBits = 0x7FC0;
const float kInfF = std::numeric_limits<float>::infinity();

struct Byte {
  int64_t offset;  // from the page's first byte
  uint8_t value;
};

struct Value {
  int column;
  float value;
};

// The bytes that give token 2 of a page of three some of its values. All other bytes are junk.
struct Golden {
  Record record;
  int64_t d;
  std::vector<Byte> stored;
  std::vector<Value> values;
};

std::vector<Golden> golden_tokens() {
  return {
      // row at 1312; scales at 1824; RoPE at 1840
      {Record::kV32Fp8,
       576,
       {{1312 + 130, 0x44},
        {1312 + 131, 0x80},
        {1824 + 4, 0x00},
        {1824 + 5, 0x00},
        {1824 + 6, 0x20},
        {1824 + 7, 0x40},
        {1840 + 126, 0x80},
        {1840 + 127, 0xBF}},
       {{130, 3 * 2.5f}, {131, -0.0f}, {575, -1}}},
      // row at 1056; scales at 1568
      {Record::kV32NopeFp8,
       512,
       {{1056 + 511, 0xB8}, {1568 + 12, 0x00}, {1568 + 13, 0x00}, {1568 + 14, 0x80}, {1568 + 15, 0x3E}},
       {{511, -0.25f}}},
      // data row at 1152, RoPE 448 bytes behind; scales behind 3 * 576, 8 a token
      {Record::kV4Fp8,
       512,
       {{1152 + 447, 0x7E}, {1728 + 16 + 6, 129}, {1152 + 448, 0x20}, {1152 + 449, 0x41}},
       {{447, 1792}, {448, 10}}},
      // data row at 1024; scales behind 3 * 512, 16 a token
      {Record::kV41Fp8,
       512,
       {{1024 + 33, 0x38}, {1024 + 64, 0x08}, {1536 + 32 + 1, 120}, {1536 + 32 + 2, 0}, {1536 + 32 + 3, 255}},
       {{33, 0x1p-7f}, {64, 0x1p-133f}, {96, NAN}, {127, NAN}}},
      // data row at 512; scales behind 3 * 256, 32 a token
      {Record::kV41Fp4,
       512,
       {{512 + 8, 0xA7},
        {512 + 255, 0x10},
        {768 + 64 + 1, 0x3C},
        {768 + 64 + 31, 0x30},
        {768 + 64 + 2, 0x7F}},
       {{16, 9}, {17, -1.5f}, {510, 0}, {511, 0.25f}, {32, NAN}, {47, NAN}}},
      // row at 1056; scales at 1568
      {Record::kV41Fp8Row, 512, {{1056 + 500, 0xC4}, {1568 + 15, 128}}, {{500, -6}}},
      // row at 576; scales at 832
      {Record::kV41Fp4Row, 512, {{576 + 255, 0x6B}, {832 + 31, 0x40}}, {{510, -3}, {511, 8}}},
      // data row at 448; scales behind 3 * 224, 32 a token; RoPE behind 3 * 256, 128 a token
      {Record::kV41MainFp4,
       512,
       {{448 + 223, 0x54}, {672 + 64 + 27, 0x38}, {768 + 256 + 2, 0x40}, {768 + 256 + 3, 0xC0}},
       {{446, 2}, {447, 3}, {449, -3}}},
      // row at 704; RoPE at 960; scales at 1024, group 5 at byte 9, group 31 at byte 31, group 30 at 23
      {Record::kV32Nvfp4,
       576,
       {{704 + 40, 0x91},
        {704 + 248, 0x02},
        {704 + 240, 0x03},
        {1024 + 9, 0x40},
        {1024 + 31, 0x48},
        {1024 + 23, 0x30},
        {960 + 63, 0xBC}},
       {{80, 1}, {81, -1}, {496, 4}, {480, 0.75f}, {575, -1.5f}}},
      {Record::kBf16, 576, {{2304 + 1150, 0x49}, {2304 + 1151, 0xC0}}, {{575, -3.140625f}}},
  };
}

TEST(OracleRecords, GoldenTokensDecodeToListedValues) {
  for (const Golden& golden : golden_tokens()) {
    SCOPED_TRACE(record_name(golden.record));
    const int64_t bytes = record_bytes(golden.record, golden.d);
    const int64_t stride = kPage * bytes + 48;
    std::vector<uint8_t> memory(static_cast<size_t>(2 * stride));
    std::mt19937 generator(1);
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(generator());
    for (const Byte& byte : golden.stored) memory[static_cast<size_t>(stride + byte.offset)] = byte.value;
    const std::vector<uint16_t> bits =
        decode_token(golden.record, Pages{memory.data(), 2, kPage, stride, bytes}, kPage + 2);
    ASSERT_EQ(bits.size(), static_cast<size_t>(golden.d));
    for (const Value& value : golden.values) {
      const uint16_t expected = std::isnan(value.value) ? kNanBits : bf16(value.value);
      EXPECT_EQ(bits[static_cast<size_t>(value.column)], expected) << "column " << value.column;
    }
  }
}

TEST(OracleRecords, ArbitraryFp32ScalesRoundOnceToFp32AndOnceToBf16) {
  const int64_t bytes = record_bytes(Record::kV32Fp8, 576);
  std::vector<uint8_t> memory(static_cast<size_t>(bytes));
  const float scale = 0.1f;
  std::memcpy(memory.data() + 512, &scale, 4);
  memory[7] = 0x3D;  // 1.625
  const std::vector<uint16_t> bits = decode_token(Record::kV32Fp8, Pages{memory.data(), 1, 1, 0, bytes}, 0);
  EXPECT_EQ(bits[7], bf16(1.625f * 0.1f));
}

// Page of one token: returns the token's bytes.
std::vector<uint8_t> encoded(Record record, const std::vector<uint16_t>& x) {
  const int64_t bytes = record_bytes(record, record_dim(record));
  std::vector<uint8_t> memory(static_cast<size_t>(bytes), 0xA5);
  encode_token(record, x.data(), Pages{memory.data(), 1, 1, 0, bytes}, 0);
  return memory;
}

void put(std::vector<uint16_t>& x, size_t at, std::initializer_list<float> values) {
  for (float value : values) x[at++] = bf16(value);
}

void expect_bytes(const std::vector<uint8_t>& memory, size_t at, std::initializer_list<int> expected) {
  for (int byte : expected) {
    EXPECT_EQ(memory[at], byte) << "byte " << at;
    ++at;
  }
}

TEST(OracleRecords, EncodesUe8m0Groups) {
  std::vector<uint16_t> x(512);
  put(x, 0, {448, -0.0f, 1, -3});  // scale 1
  put(x, 32, {450, 2});            // scale 2
  put(x, 64, {448e-6f, 0});        // under the floor: scale 2^-13
  put(x, 96, {1, -2, kInfF, -kInfF, NAN, -0.0f});
  put(x, 128, {224, 12});  // scale 1/2
  const std::vector<uint8_t> memory = encoded(Record::kV41Fp8, x);
  expect_bytes(memory, 0, {0x7E, 0x80, 0x38, 0xC4, 0x00});
  expect_bytes(memory, 32, {0x76, 0x38});
  expect_bytes(memory, 64, {0x47});  // 448e-6 * 2^13 = 3.67
  expect_bytes(memory, 96, {0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00});
  expect_bytes(memory, 128, {0x7E, 0x5C});
  expect_bytes(memory, 512, {127, 128, 114, 255, 126, 114, 114, 114, 114, 114, 114, 114, 114, 114, 114, 114});
  EXPECT_EQ(encoded(Record::kV41Fp8Row, x), memory);  // the same for pages of one token
}

TEST(OracleRecords, EncodesFp32ScaledGroups) {
  std::vector<uint16_t> x(576);
  put(x, 128, {450, -4});
  put(x, 256, {NAN, -1});
  put(x, 512, {450, -kInfF});
  x[514] = 0x7FC1;  // RoPE columns are copied as they are
  const std::vector<uint8_t> memory = encoded(Record::kV32Fp8, x);
  expect_bytes(memory, 128, {0x76, 0xC0, 0x00});
  expect_bytes(memory, 256, {0x00, 0x80});
  expect_bytes(memory, 512,
               {0x00, 0x00, 0x00, 0x39,  // 2^-13
                0x00, 0x00, 0x00, 0x40,  // 2
                0x00, 0x00, 0xC0, 0x7F,  // NaN
                0x00, 0x00, 0x00, 0x39});
  expect_bytes(memory, 512 + 16, {0xE1, 0x43, 0x80, 0xFF, 0xC1, 0x7F, 0x00, 0x00});
  const std::vector<uint8_t> nope = encoded(Record::kV32NopeFp8, x);
  EXPECT_TRUE(std::equal(nope.begin(), nope.end(), memory.begin()));
}

TEST(OracleRecords, EncodesV4) {
  std::vector<uint16_t> x(512);
  put(x, 320, {448, 448});
  put(x, 448, {450, 1});
  const std::vector<uint8_t> memory = encoded(Record::kV4Fp8, x);
  expect_bytes(memory, 320, {0x7E, 0x7E, 0x00});
  expect_bytes(memory, 448, {0xE1, 0x43, 0x80, 0x3F});
  expect_bytes(memory, 576, {114, 114, 114, 114, 114, 127, 114, 0});
}

TEST(OracleRecords, EncodesE2m1Groups) {
  std::vector<uint16_t> x(512);
  put(x, 0, {6, -5, -0.0f, -0.1f, 0.25f, 0.75f, 2.5f, 1.75f});  // scale 1
  put(x, 16, {6.1875f, 3});                                     // 1.03 rounds to 1
  put(x, 32, {1e5f, 448});                                      // scale 448
  put(x, 48, {0.001f, 0.002f});                                 // scale 2^-9
  put(x, 64, {-0.0f, -1, kInfF});
  const std::vector<uint8_t> memory = encoded(Record::kV41Fp4, x);
  expect_bytes(memory, 0, {0xE7, 0x80, 0x20, 0x44, 0x00});
  expect_bytes(memory, 8, {0x57});
  expect_bytes(memory, 16, {0x27});
  expect_bytes(memory, 24, {0x21});  // 0.51 and 1.02 of the scale
  expect_bytes(memory, 32, {0x88, 0x00});
  expect_bytes(memory, 256, {0x38, 0x38, 0x7E, 0x01, 0x7F, 0x01});
  EXPECT_EQ(encoded(Record::kV41Fp4Row, x), memory);
}

TEST(OracleRecords, EncodesMainFp4) {
  std::vector<uint16_t> x(512);
  put(x, 432, {6, 5});
  put(x, 448, {6, 5, -0.1f, -0.0f});
  put(x, 464, {kInfF, -1});
  const std::vector<uint8_t> memory = encoded(Record::kV41MainFp4, x);
  expect_bytes(memory, 216, {0x67});
  expect_bytes(memory, 224 + 27, {0x38, 0, 0, 0, 0});
  expect_bytes(memory, 256, {0xC0, 0x40, 0x80, 0x40, 0x00, 0x80, 0x00, 0x00});  // 6, 4, -0, 0
  expect_bytes(memory, 256 + 32, {0xC0, 0x7F, 0xC0, 0x7F});
}

TEST(OracleRecords, EncodesNvfp4) {
  std::vector<uint16_t> x(576);
  put(x, 80, {6.1875f, 4.5f});  // 1.03 rounds up to 1.125, that of group 5
  put(x, 496, {6, -1});
  put(x, 512, {500, kInfF, -kInfF, NAN, -3, -0.0f});
  const std::vector<uint8_t> memory = encoded(Record::kV32Nvfp4, x);
  expect_bytes(memory, 40, {0x67});  // 5.5 -> 6, 4
  expect_bytes(memory, 248, {0xA7});
  expect_bytes(memory, 256, {0x7E, 0x7E, 0xFE, 0x7F, 0xC4, 0x80, 0x00});
  expect_bytes(memory, 320, {0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x39, 0x01});
  expect_bytes(memory, 351, {0x38});
}

TEST(OracleRecords, RecordsAreFoundFromTheTensor) {
  const std::pair<Record, Record> found[] = {
      {Record::kV32Fp8, Record::kV32Fp8},     {Record::kV32NopeFp8, Record::kV41Fp8},
      {Record::kV4Fp8, Record::kV4Fp8},       {Record::kV41Fp8, Record::kV41Fp8},
      {Record::kV41Fp4, Record::kV41Fp4},     {Record::kV41Fp8Row, Record::kV41Fp8},
      {Record::kV41Fp4Row, Record::kV41Fp4},  {Record::kV41MainFp4, Record::kV41MainFp4},
      {Record::kV32Nvfp4, Record::kV32Nvfp4},
  };
  for (const auto& [stored, inferred] : found) {
    const Bytes cache({1, 1, 1, record_bytes(stored, record_dim(stored))});
    EXPECT_EQ(resolve_record(Record::kAuto, cache.view()), inferred);
    EXPECT_EQ(resolve_record(stored, cache.view()), stored);
  }
  EXPECT_EQ(resolve_record(Record::kAuto, Bf16({1, 1, 1, 576}).view()), Record::kBf16);
}

TEST(OracleRecords, QuantizeFillsTheLastPageWithZeroRows) {
  Bf16 x({5, 512});
  fill_random(x, 4);
  Bytes pages({2, 3, 1, record_bytes(Record::kV41Fp8, 512)}, 0x55);
  QuantizeKvArgs args;
  args.x = x.view();
  args.record = Record::kV41Fp8;
  args.pages = pages.view();
  const std::vector<uint8_t> memory = after_quantize(args, pages.values);
  ASSERT_EQ(memory.size(), pages.values.size());
  pages.values = memory;
  DequantizeKvArgs back;
  back.pages = pages.view();
  back.record = Record::kV41Fp8;
  const std::vector<uint16_t> values = dequantized(back);
  ASSERT_EQ(values.size(), 6u * 512);
  EXPECT_THAT(std::vector(values.begin() + 5 * 512, values.end()), Each(0));
  for (size_t i = 0; i < x.values.size(); ++i) {
    const float expected = bf16_bits_to_f32(x.values[i]);
    EXPECT_NEAR(bf16_bits_to_f32(values[i]), expected, 0.07f * std::fabs(expected) + 1e-3f);
  }
}

TEST(OracleRecords, AppendTouchesItsSlotsAlone) {
  Bf16 kv({6, 512});
  fill_random(kv, 9);
  const int64_t bytes = record_bytes(Record::kV41Fp4, 512);
  Bytes cache({2, 3, 1, bytes}, 0x55);
  Longs slots({6});
  slots.values = {4, -1, 6, 0, 4, int64_t{1} << 40};  // 4 twice: the last wins
  AppendKvArgs args;
  args.kv = kv.view();
  args.cache = cache.view();
  args.slots = slots.view();
  const std::vector<uint8_t> memory = after_append(args, cache.values);

  std::vector<uint8_t> expected = cache.values;
  const Pages pages{expected.data(), 2, 3, 3 * bytes, bytes};
  encode_token(Record::kV41Fp4, kv.values.data() + 4 * 512, pages, 4);
  encode_token(Record::kV41Fp4, kv.values.data() + 3 * 512, pages, 0);
  EXPECT_EQ(memory, expected);
  for (size_t i = 256; i < 768; ++i) EXPECT_EQ(memory[i], 0x55);  // data of tokens 1 and 2 of block 0

  const Ints narrow = ints({6}, {4, -1, 6, 0, 4, std::numeric_limits<int32_t>::max()});
  args.slots = narrow.view();
  EXPECT_EQ(after_append(args, cache.values), expected);
}

TEST(OracleRecords, PagesOfABf16CacheCountBytes) {
  const Bf16 cache({3, 4, 1, 576});
  const Pages pages = pages_of(cache.view());
  EXPECT_EQ(pages.block_stride, 4 * 1152);
  EXPECT_EQ(pages.token_bytes, 1152);
  EXPECT_EQ(pages.slots(), 12);
}

}  // namespace
}  // namespace tilewise::oracle_self
