// What a row must not take over from the rows and values that share its tile, and from sinks when it is
// lonely.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/numeric.h"
#include "tests/support/device.h"
#include "tests/support/kernels.h"
#include "tilewise/tilewise.h"

namespace tilewise {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<uint16_t> filled(int64_t count, float value) {
  return std::vector<uint16_t>(static_cast<size_t>(count), f32_to_bf16_bits(value));
}

// Two causal queries of which the second alone sees a NaN key: which of the other rows it reaches is a matter
// of the request, not of the threads or of the batch around it.
std::vector<uint16_t> first_request(const std::string& kernel, int64_t batch, int threads) {
  constexpr int64_t kTokens = 2;
  constexpr int64_t kHeads = 64;
  constexpr int64_t kKeys = 100;
  const std::vector<uint16_t> q = filled(batch * kTokens * kHeads * 576, 0.25f);
  std::vector<uint16_t> cache = filled(kKeys * 576, 0.5f);
  std::fill(cache.end() - 576, cache.end(), f32_to_bf16_bits(kNan));
  const std::vector<int32_t> table(static_cast<size_t>(batch), 0);
  const std::vector<int32_t> lengths(static_cast<size_t>(batch), kKeys);
  std::vector<uint16_t> out(static_cast<size_t>(batch * kTokens * kHeads * 512));
  DenseDecodeArgs args;
  args.q = {q.data(), DType::kBF16, {batch, kTokens, kHeads, 576}};
  args.k_cache = {cache.data(), DType::kBF16, {1, kKeys, 1, 576}};
  args.block_table = {table.data(), DType::kInt32, {batch, 1}};
  args.cache_seqlens = {lengths.data(), DType::kInt32, {batch}};
  args.softmax_scale = 0.05f;
  args.causal = true;
  args.out = {out.data(), DType::kBF16, {batch, kTokens, kHeads, 512}};
  args.batch_invariant = true;
  testing::call(args, {.kernel = kernel, .threads = threads});
  out.resize(kTokens * kHeads * 512);
  return out;
}

// A lonely row beside a full one, under a sink of NaN.
std::vector<uint16_t> lonely_and_full(const std::string& kernel) {
  const std::vector<uint16_t> q = filled(2 * 512, 1.0f);
  const std::vector<uint16_t> kv = filled(4 * 512, 2.0f);
  const std::vector<int32_t> indices = {-1, -1, 0, 3};
  const float sink = kNan;
  std::vector<uint16_t> out = filled(2 * 512, -7.0f);
  SparsePrefillFwdArgs args;
  args.q = {q.data(), DType::kBF16, {2, 1, 512}};
  args.kv = {kv.data(), DType::kBF16, {4, 1, 512}};
  args.indices = {indices.data(), DType::kInt32, {2, 1, 2}};
  args.softmax_scale = 0.05f;
  args.attn_sink = {&sink, DType::kFP32, {1}};
  args.out = {out.data(), DType::kBF16, {2, 1, 512}};
  testing::call(args, {.kernel = kernel});
  return out;
}

TEST(SharedTile, ANanSpreadsAlikeForAnyBatchAndThreads) {
  for (const std::string& kernel : testing::kernels_of(testing::device(), true)) {
    const std::vector<uint16_t> expected = first_request(kernel, 1, 1);
    for (const int64_t batch : {1, 2, 4}) {
      for (const int threads : {1, 2, 4, 8}) {
        EXPECT_TRUE(first_request(kernel, batch, threads) == expected)
            << kernel << ", batch " << batch << ", " << threads << " threads";
      }
    }
  }
}

// A list of several tiles in which the key at place `spoiled` is NaN, or +inf, and that at `infinite` +inf.
void expect_spoiled_row(const std::string& kernel, size_t spoiled, size_t infinite) {
  constexpr int64_t kKeys = 1400;
  const std::vector<uint16_t> q = filled(512, 1.0f);
  std::vector<uint16_t> kv = filled(kKeys * 512, 0.125f);
  if (infinite < kKeys) kv[infinite * 512] = f32_to_bf16_bits(std::numeric_limits<float>::infinity());
  if (spoiled < kKeys) kv[spoiled * 512] = f32_to_bf16_bits(kNan);
  std::vector<int32_t> indices(kKeys);
  std::iota(indices.begin(), indices.end(), 0);
  std::vector<uint16_t> out(512);
  float lse = 0;
  float max_logits = 0;
  SparsePrefillFwdArgs args;
  args.q = {q.data(), DType::kBF16, {1, 1, 512}};
  args.kv = {kv.data(), DType::kBF16, {kKeys, 1, 512}};
  args.indices = {indices.data(), DType::kInt32, {1, 1, kKeys}};
  args.softmax_scale = 0.05f;
  args.out = {out.data(), DType::kBF16, {1, 1, 512}};
  args.lse = {&lse, DType::kFP32, {1, 1}};
  args.max_logits = {&max_logits, DType::kFP32, {1, 1}};
  testing::call(args, {.kernel = kernel, .threads = 1});
  EXPECT_TRUE(std::isnan(lse));
  EXPECT_TRUE(std::isnan(bf16_bits_to_f32(out[0])));
  if (spoiled < kKeys) {
    EXPECT_TRUE(std::isnan(max_logits)) << max_logits;
  } else {
    EXPECT_EQ(max_logits, std::numeric_limits<float>::infinity());
  }
}

TEST(SharedTile, ANanOrAnInfinityShowsInWhicheverTileItIs) {
  constexpr size_t kNowhere = 1400;
  const std::vector<size_t> places = {0, 255, 256, 700, 1030, 1399};
  for (const std::string& kernel : testing::kernels_of(testing::device(), true)) {
    for (const size_t place : places) {
      SCOPED_TRACE(kernel + ", place " + std::to_string(place));
      expect_spoiled_row(kernel, place, kNowhere);
      expect_spoiled_row(kernel, kNowhere, place);
      expect_spoiled_row(kernel, place, 300);
      expect_spoiled_row(kernel, 300, place == 300 ? 301 : place);
    }
  }
}

TEST(SharedTile, ALonelyRowIsZeroUnderASinkOfNan) {
  for (const std::string& kernel : testing::kernels_of(testing::device(), true)) {
    const std::vector<uint16_t> out = lonely_and_full(kernel);
    for (size_t c = 0; c < 512; ++c) ASSERT_EQ(out[c], 0) << kernel << ", column " << c;
    for (size_t c = 512; c < 1024; ++c) {
      ASSERT_TRUE(std::isnan(bf16_bits_to_f32(out[c]))) << kernel << ", column " << c - 512;
    }
  }
}

TEST(SharedTile, ManyThreadsForLittleWork) {
  std::vector<uint16_t> x = filled(512, 1.0f);
  std::vector<uint8_t> pages(static_cast<size_t>(record_bytes(Record::kV41Fp8, 512)));
  QuantizeKvArgs args;
  args.x = {x.data(), DType::kBF16, {1, 512}};
  args.record = Record::kV41Fp8;
  args.pages = {pages.data(), DType::kUInt8, {1, 1, 1, static_cast<int64_t>(pages.size())}};
  testing::call(args, {.kernel = {}, .threads = 100000});  // as many real threads could not be had
  EXPECT_EQ(pages[0], 0x78);                               // 1 / 2^-8
}

}  // namespace
}  // namespace tilewise
