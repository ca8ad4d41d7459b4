// The oracle of dense_decode: paging, lengths, masks, grouped heads, dtypes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reference/attention.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::attention;
using reference::AttentionResult;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr double kTiny = 1e-6;

// Keys that all have the score 0, so that a query's output is the mean over the keys that it sees: column k
// is 1 / count where key k of the sequence is seen. Pages of 3 keys lie in blocks 4, 1, 0.
struct Paged {
  int64_t s_q;
  Bf16 q;
  Bf16 cache{{5, 3, 1, 9}};
  Ints table = ints({1, 3}, {4, 1, 0});
  Ints lengths = ints({1}, {8});
  DenseDecodeArgs args;

  explicit Paged(int64_t queries = 1) : s_q(queries), q({1, queries, 1, 9}) {
    const int64_t blocks[] = {4, 1, 0};
    for (int64_t key = 0; key < 9; ++key) cache.at({blocks[key / 3], key % 3, 0, key}) = bf16(1);
    args.d_v = 9;
  }

  AttentionResult run() {
    args.q = q.view();
    args.k_cache = cache.view();
    args.block_table = table.view();
    args.cache_seqlens = lengths.view();
    return attention(args, Arithmetic::kDouble);
  }

  // For each query a string of nine characters: x where the key is seen.
  std::vector<std::string> seen() {
    const AttentionResult result = run();
    std::vector<std::string> rows;
    for (int64_t s = 0; s < s_q; ++s) {
      std::string row;
      double weight = 0;
      for (size_t k = 0; k < 9; ++k) {
        const double x = result.out[static_cast<size_t>(s) * 9 + k];
        row += x > 0 ? 'x' : '.';
        weight += x;
      }
      const double count = static_cast<double>(std::count(row.begin(), row.end(), 'x'));
      EXPECT_NEAR(weight, count > 0 ? 1 : 0, kTiny);
      EXPECT_EQ(result.max_logits[static_cast<size_t>(s)], count > 0 ? 0 : -kInf);
      EXPECT_DOUBLE_EQ(result.lse[static_cast<size_t>(s)], count > 0 ? std::log(count) : kInf);
      rows.push_back(row);
    }
    return rows;
  }
};

TEST(OracleDense, LengthsAndTheirClamp) {
  Paged p;
  EXPECT_THAT(p.seen(), ElementsAre("xxxxxxxx."));
  p.lengths = ints({1}, {100});
  EXPECT_THAT(p.seen(), ElementsAre("xxxxxxxxx"));
  p.lengths = ints({1}, {0});
  EXPECT_THAT(p.seen(), ElementsAre("........."));
  p.lengths = ints({1}, {-7});
  EXPECT_THAT(p.seen(), ElementsAre("........."));
}

TEST(OracleDense, BlockTableEntriesOutOfRange) {
  Paged p;
  p.lengths = ints({1}, {9});
  for (int32_t bad : {-1, 5, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    p.table = ints({1, 3}, {4, bad, 0});
    EXPECT_THAT(p.seen(), ElementsAre("xxx...xxx"));
  }
}

TEST(OracleDense, CausalIsAlignedToTheEnd) {
  Paged p(3);
  p.args.causal = true;
  EXPECT_THAT(p.seen(), ElementsAre("xxxxxx...", "xxxxxxx..", "xxxxxxxx."));
  p.lengths = ints({1}, {2});  // more queries than keys
  EXPECT_THAT(p.seen(), ElementsAre(".........", "x........", "xx......."));
  p.args.causal = false;
  EXPECT_THAT(p.seen(), ElementsAre("xx.......", "xx.......", "xx......."));
}

TEST(OracleDense, Windows) {
  Paged p(3);
  p.args.window = {2, 1};
  EXPECT_THAT(p.seen(), ElementsAre("...xxxx..", "....xxxx.", ".....xxx."));
  p.args.window = {0, 0};
  EXPECT_THAT(p.seen(), ElementsAre(".....x...", "......x..", ".......x."));
  p.args.window = {-1, 0};
  EXPECT_THAT(p.seen(), ElementsAre("xxxxxx...", "xxxxxxx..", "xxxxxxxx."));
  p.args.window = {1, -1};
  EXPECT_THAT(p.seen(), ElementsAre("....xxxx.", ".....xxx.", "......xx."));
  p.args.causal = true;  // what both keep
  EXPECT_THAT(p.seen(), ElementsAre("....xx...", ".....xx..", "......xx."));
  p.args.causal = false;
  p.lengths = ints({1}, {1});
  p.args.window = {0, 1};
  EXPECT_THAT(p.seen(), ElementsAre(".........", "x........", "x........"));
}

TEST(OracleDense, RequestsHaveTheirOwnTableAndLength) {
  Paged p;
  p.q = Bf16({2, 1, 1, 9});
  p.table = ints({2, 3}, {4, 1, 0, 1, 4, 4});
  p.lengths = ints({2}, {2, 3});
  const AttentionResult result = p.run();
  EXPECT_EQ(result.batch, 2);
  EXPECT_THAT(std::vector(result.out.begin(), result.out.begin() + 9),
              ElementsAre(0.5, 0.5, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(std::vector(result.out.begin() + 9, result.out.end()),
              ElementsAre(0, 0, 0, DoubleNear(1.0 / 3, kTiny), DoubleNear(1.0 / 3, kTiny),
                          DoubleNear(1.0 / 3, kTiny), 0, 0, 0));
}

TEST(OracleDense, HeadsAreGroupedInOrder) {
  Bf16 q({1, 1, 6, 2});
  Bf16 cache({1, 1, 3, 2});
  for (int64_t head = 0; head < 3; ++head) cache.at({0, 0, head, 1}) = bf16(static_cast<float>(head + 1));
  const Ints table = ints({1, 1}, {0});
  const Ints lengths = ints({1}, {1});
  DenseDecodeArgs args;
  args.q = q.view();
  args.k_cache = cache.view();
  args.block_table = table.view();
  args.cache_seqlens = lengths.view();
  args.d_v = 2;
  EXPECT_THAT(attention(args, Arithmetic::kDouble).out, ElementsAre(0, 1, 0, 1, 0, 2, 0, 2, 0, 3, 0, 3));
}

TEST(OracleDense, SinkOfEachHead) {
  Paged p;
  p.q = Bf16({1, 1, 2, 9});
  p.lengths = ints({1}, {1});
  const Floats sink = floats({0, std::log(3.0f)});
  p.args.attn_sink = sink.view();
  const AttentionResult result = p.run();
  EXPECT_NEAR(result.out[0], 0.5, kTiny);
  EXPECT_NEAR(result.out[9], 0.25, kTiny);
  EXPECT_THAT(result.lse, Each(0.0));
}

// Two keys with the scores 0 and 1.5 * 2 * scale.
template <class Tensor>
AttentionResult two_keys(uint32_t q, uint32_t k, DenseDecodeArgs args) {
  Tensor query({1, 1, 1, 2});
  Tensor cache({1, 2, 1, 2});
  query.at({0, 0, 0, 0}) = static_cast<typename decltype(query.values)::value_type>(q);
  cache.at({0, 1, 0, 0}) = static_cast<typename decltype(query.values)::value_type>(k);
  const Ints table = ints({1, 1}, {0});
  const Ints lengths = ints({1}, {2});
  args.q = query.view();
  args.k_cache = cache.view();
  args.block_table = table.view();
  args.cache_seqlens = lengths.view();
  args.d_v = 1;
  args.softmax_scale = kLn2;
  return attention(args, Arithmetic::kDouble);
}

TEST(OracleDense, Dtypes) {
  const AttentionResult b = two_keys<Bf16>(bf16(1.5f), bf16(2), {});
  EXPECT_NEAR(b.lse[0], std::log(9.0), kTiny);
  EXPECT_NEAR(b.out[0], 2 * 8.0 / 9, kTiny);
  const AttentionResult h = two_keys<Fp16>(f32_to_f16_bits(1.5f), f32_to_f16_bits(2), {});
  EXPECT_NEAR(h.lse[0], std::log(9.0), kTiny);
  EXPECT_NEAR(h.out[0], 2 * 8.0 / 9, kTiny);
}

TEST(OracleDense, Fp8ScalesScoresByBothAndOutByOne) {
  const Floats descale_q = floats({0.5f});
  const Floats descale_k = floats({4});
  DenseDecodeArgs args;
  args.descale_q = descale_q.view();
  args.descale_k = descale_k.view();
  const AttentionResult result = two_keys<Fp8>(0x3C /* 1.5 */, 0x38 /* 1 */, args);  // a score of 3 ln 2
  EXPECT_NEAR(result.max_logits[0], 3 * std::log(2.0), kTiny);
  EXPECT_NEAR(result.lse[0], std::log(9.0), kTiny);
  EXPECT_NEAR(result.out[0], 4 * 8.0 / 9, kTiny);
}

TEST(OracleDense, StridesOfTheCacheDoNotMatter) {
  Paged p(3);
  fill_random(p.q, 5);
  fill_random(p.cache, 6);
  p.args.causal = true;
  const AttentionResult dense = p.run();
  // The same elements inside a larger buffer: blocks, rows and heads padded with NaN.
  Bf16 padded({5, 4, 2, 16}, 0x7FC0);
  for (int64_t block = 0; block < 5; ++block) {
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t c = 0; c < 9; ++c) padded.at({block, row, 0, c}) = p.cache.at({block, row, 0, c});
    }
  }
  const std::vector<int64_t> shape = {5, 3, 1, 9};
  const std::vector<int64_t> strides = {128, 32, 16, 1};
  p.args.k_cache = TensorView(padded.values.data(), DType::kBF16, shape, strides);
  const AttentionResult strided = attention(p.args, Arithmetic::kDouble);
  EXPECT_THAT(strided.out, ElementsAreArray(dense.out));
  EXPECT_THAT(strided.lse, ElementsAreArray(dense.lse));
  EXPECT_GT(std::fabs(dense.out[0]), 0);
}

TEST(OracleDense, EqualsThePlainSoftmaxOnRandomData) {
  constexpr int64_t kLength = 41;
  Bf16 q({2, 2, 4, 12});
  Bf16 cache({7, 8, 2, 12});
  fill_random(q, 7);
  fill_random(cache, 8);
  const Ints table = ints({2, 6}, {3, 1, 0, 6, 2, 5, 0, 6, 5, 4, 4, 2});
  const Ints lengths = ints({2}, {kLength, kLength - 10});
  DenseDecodeArgs args;
  args.q = q.view();
  args.k_cache = cache.view();
  args.block_table = table.view();
  args.cache_seqlens = lengths.view();
  args.d_v = 8;
  args.softmax_scale = 0.3f;
  args.causal = true;
  args.window = {20, -1};
  const AttentionResult result = attention(args, Arithmetic::kDouble);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 2; ++s) {
      for (int64_t h = 0; h < 4; ++h) {
        std::vector<std::vector<double>> keys;
        const int64_t last = kLength - 10 * b - 2 + s;
        for (int64_t k = last - 20; k <= last; ++k) {
          const int64_t block = table.values[static_cast<size_t>(b * 6 + k / 8)];
          keys.push_back(values_of(cache, {block, k % 8, h / 2}, 12));
        }
        const PlainRow expected = plain_softmax(values_of(q, {b, s, h}, 12), keys, 0.3f, 8);
        const size_t row = static_cast<size_t>(result.row(b, s, h));
        EXPECT_NEAR(result.lse[row], expected.lse, 1e-12);
        for (size_t c = 0; c < 8; ++c) EXPECT_NEAR(result.out[row * 8 + c], expected.out[c], 1e-12);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::oracle_self
