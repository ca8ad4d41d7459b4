// The weight permutations against index formulas, byte by byte.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tilewise/ops/fused.h"

namespace tilewise {
namespace {

std::vector<uint8_t> random_bytes(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

/// 64-byte aligned storage.
struct Buffer {
  explicit Buffer(size_t n, uint8_t fill = 0) : room(n + 64, fill) {}
  uint8_t* data() { return room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64) % 64; }
  void fill(const std::vector<uint8_t>& bytes) { std::memcpy(data(), bytes.data(), bytes.size()); }
  std::vector<uint8_t> room;
};

TensorView columns_first(void* data, int64_t rows, int64_t columns, int64_t pitch) {
  return {data, DType::kInt32, std::vector<int64_t>{rows, columns}, std::vector<int64_t>{1, pitch}};
}

void expect_q_b_proj(int64_t h_q, int64_t d_q, int64_t r, int64_t granularity) {
  SCOPED_TRACE(testing::Message() << h_q << " heads of " << d_q << ", r " << r << ", granularity "
                                  << granularity);
  const int64_t rows = h_q * d_q;
  const int64_t columns = r / granularity / 4;
  const int64_t pitch_in = rows + 3;
  const int64_t pitch_out = rows + 5;
  Buffer weight(static_cast<size_t>(rows * r));
  Buffer weight_out(static_cast<size_t>(rows * r));
  Buffer scales(static_cast<size_t>(columns * pitch_in * 4));
  Buffer scales_out(static_cast<size_t>(columns * pitch_out * 4), 0xEE);
  weight.fill(random_bytes(static_cast<size_t>(rows * r), 1));
  scales.fill(random_bytes(static_cast<size_t>(columns * pitch_in * 4), 2));

  PermuteQBProjArgs args;
  args.weight = {weight.data(), DType::kE4M3, {rows, r}};
  args.scales = columns_first(scales.data(), rows, columns, pitch_in);
  args.h_q = h_q;
  args.d_q = d_q;
  args.weight_out = {weight_out.data(), DType::kE4M3, {rows, r}};
  args.scales_out = columns_first(scales_out.data(), rows, columns, pitch_out);
  permute_q_b_proj(args);

  const auto* from = reinterpret_cast<const int32_t*>(scales.data());
  const auto* to = reinterpret_cast<const int32_t*>(scales_out.data());
  // Walks the result: row `row` of it is channel 16 * block + lane of head h.
  int64_t row = 0;
  for (int64_t block = 0; block < d_q / 16; ++block) {
    for (int64_t h = 0; h < h_q; ++h) {
      for (int64_t lane = 0; lane < 16; ++lane, ++row) {
        const int64_t source = h * d_q + block * 16 + lane;
        ASSERT_EQ(
            std::memcmp(weight_out.data() + row * r, weight.data() + source * r, static_cast<size_t>(r)), 0);
        for (int64_t k = 0; k < columns; ++k) ASSERT_EQ(to[row + k * pitch_out], from[source + k * pitch_in]);
      }
    }
  }
  for (int64_t k = 0; k < columns; ++k) {
    for (int64_t pad = rows; pad < pitch_out; ++pad) {
      ASSERT_EQ(to[pad + k * pitch_out], static_cast<int32_t>(0xEEEEEEEE)) << "padding was written";
    }
  }
}

TEST(PermuteQBProj, RowsAndScales) {
  expect_q_b_proj(1, 16, 128, 32);
  expect_q_b_proj(3, 64, 512, 128);
  expect_q_b_proj(5, 512, 1536, 128);
  expect_q_b_proj(4, 48, 1536, 32);
}

TEST(PermuteQBProj, OneRowByHand) {
  // Two heads of 32: channel 17 of head 1 goes to (17 / 16) * 2 * 16 + 1 * 16 + 1 = 49.
  Buffer weight(64 * 128);
  Buffer weight_out(64 * 128, 0x77);
  Buffer scales(64 * 4);
  Buffer scales_out(64 * 4, 0x77);
  weight.data()[(32 + 17) * 128] = 0x5A;
  weight.data()[0 * 128 + 1] = 0x3C;
  reinterpret_cast<int32_t*>(scales.data())[32 + 5] = 12345;
  PermuteQBProjArgs args;
  args.weight = {weight.data(), DType::kE4M3, {64, 128}};
  args.scales = columns_first(scales.data(), 64, 1, 64);
  args.h_q = 2;
  args.d_q = 32;
  args.weight_out = {weight_out.data(), DType::kE4M3, {64, 128}};
  args.scales_out = columns_first(scales_out.data(), 64, 1, 64);
  permute_q_b_proj(args);
  EXPECT_EQ(weight_out.data()[49 * 128], 0x5A);
  EXPECT_EQ(weight_out.data()[0 * 128 + 1], 0x3C);
  EXPECT_EQ(reinterpret_cast<int32_t*>(scales_out.data())[16 + 5], 12345) << "channel 5 of head 1";
}

TEST(PermuteWvProj, ColumnsAndScales) {
  for (int64_t size : {1, 3, 8}) {
    SCOPED_TRACE(size);
    const int64_t groups = 2;
    const int64_t n = 5;
    const int64_t width = size * 512;
    const int64_t scale_bytes = width / 32;
    Buffer weight(static_cast<size_t>(groups * n * width));
    Buffer weight_out(static_cast<size_t>(groups * n * width));
    Buffer scales(static_cast<size_t>(groups * n * scale_bytes));
    Buffer scales_out(static_cast<size_t>(groups * n * scale_bytes));
    weight.fill(random_bytes(static_cast<size_t>(groups * n * width), 3));
    scales.fill(random_bytes(static_cast<size_t>(groups * n * scale_bytes), 4));
    PermuteWvProjArgs args;
    args.weight = {weight.data(), DType::kE4M3, {groups, n, width}};
    args.scales = {scales.data(), DType::kInt32, {groups, n, scale_bytes / 4}};
    args.group_size = size;
    args.weight_out = {weight_out.data(), DType::kE4M3, {groups, n, width}};
    args.scales_out = {scales_out.data(), DType::kInt32, {groups, n, scale_bytes / 4}};
    permute_wv_proj(args);

    for (int64_t row = 0; row < groups * n; ++row) {
      for (int64_t head = 0; head < size; ++head) {
        for (int64_t c = 0; c < 512; ++c) {
          const int64_t to = c / 32 * size * 32 + head * 32 + c % 32;
          ASSERT_EQ(weight_out.data()[row * width + to], weight.data()[row * width + head * 512 + c]);
          // Four exponents in one little-endian int32: the shift of the byte is 8 * (number % 4).
          const auto exponent = [row, scale_bytes](Buffer& words, int64_t column) {
            uint32_t word = 0;
            std::memcpy(&word, words.data() + row * scale_bytes + column / 128 * 4, 4);
            return (word >> (8 * (column / 32 % 4))) & 0xFF;
          };
          ASSERT_EQ(exponent(scales_out, to), exponent(scales, head * 512 + c));
        }
      }
    }
  }
}

TEST(PermuteWvProj, NoRows) {
  PermuteWvProjArgs args;
  args.weight = {nullptr, DType::kE4M3, {0, 5, 512}};
  args.scales = {nullptr, DType::kInt32, {0, 5, 4}};
  args.group_size = 1;
  args.weight_out = args.weight;
  args.scales_out = args.scales;
  EXPECT_NO_THROW(permute_wv_proj(args));
}

}  // namespace
}  // namespace tilewise
