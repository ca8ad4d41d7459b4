// The oracle of sparse_decode: which tokens of which cache a query attends to, for every record and pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "reference/attention.h"
#include "reference/dequant.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::attention;
using reference::AttentionResult;

constexpr int64_t kTokens = 20;  // in a cache

// A cache of random tokens; the record's bytes, or bf16.
struct Cache {
  Record record;
  int64_t page;
  int64_t d;
  Bytes bytes;
  Bf16 rows;

  Cache(Record which, int64_t page_size, int64_t head_size, uint32_t seed)
      : record(which), page(page_size), d(head_size) {
    Bf16 x({kTokens, d});
    fill_random(x, seed);
    const int64_t blocks = kTokens / page;
    if (record == Record::kBf16) {
      rows = Bf16({blocks, page, 1, d});
      rows.values = x.values;
      return;
    }
    bytes = Bytes({blocks, page, 1, record_bytes(record, d)});
    QuantizeKvArgs args;
    args.x = x.view();
    args.record = record;
    args.pages = bytes.view();
    bytes.values = reference::after_quantize(args, bytes.values);
  }

  TensorView view() const { return record == Record::kBf16 ? rows.view() : bytes.view(); }

  std::vector<double> token(int64_t slot) const {
    std::vector<double> values;
    for (uint16_t bits : reference::decode_token(record, reference::pages_of(view()), slot)) {
      values.push_back(bf16_bits_to_f32(bits));
    }
    return values;
  }
};

Ints random_lists(int64_t batch, int64_t s_q, int64_t topk, uint32_t seed) {
  std::mt19937 generator(seed);
  Ints lists({batch, s_q, topk});
  for (int32_t& index : lists.values) index = static_cast<int32_t>(generator() % (kTokens + 4)) - 2;
  return lists;
}

void add_keys(const Cache& cache, const Ints& lists, int64_t row, int64_t count,
              std::vector<std::vector<double>>& keys) {
  const int64_t topk = lists.shape[2];
  for (int64_t i = 0; i < std::min(count, topk); ++i) {
    const int64_t slot = lists.values[static_cast<size_t>(row * topk + i)];
    if (slot >= 0 && slot < kTokens) keys.push_back(cache.token(slot));
  }
}

void check_pair(Record main_record, std::optional<Record> extra_record, int64_t d) {
  const Cache main(main_record, 4, d, 1);
  std::optional<Cache> extra;
  if (extra_record) extra.emplace(*extra_record, 10, d, 2);
  Bf16 q({2, 2, 3, d});
  fill_random(q, 3, 0.2f);
  const Ints lists = random_lists(2, 2, 9, 4);
  const Ints extra_lists = random_lists(2, 2, 7, 5);
  const Ints length = ints({2}, {6, 100});
  const Ints extra_length = ints({2}, {7, 3});

  SparseDecodeArgs args;
  args.q = q.view();
  args.kv_cache = main.view();
  args.record = main_record;
  args.indices = lists.view();
  args.topk_length = length.view();
  args.softmax_scale = 0.5f;
  if (extra) {
    args.extra_cache = extra->view();
    args.extra_record = *extra_record;
    args.extra_indices = extra_lists.view();
    args.extra_topk_length = extra_length.view();
  }
  const AttentionResult result = attention(args, Arithmetic::kDouble);
  ASSERT_EQ(result.rows(), 12);
  ASSERT_EQ(result.d_v, 512);
  for (int64_t token = 0; token < 4; ++token) {
    std::vector<std::vector<double>> keys;
    add_keys(main, lists, token, token < 2 ? 6 : 100, keys);
    if (extra) add_keys(*extra, extra_lists, token, token < 2 ? 7 : 3, keys);
    for (int64_t h = 0; h < 3; ++h) {
      const PlainRow expected = plain_softmax(values_of(q, {token / 2, token % 2, h}, d), keys, 0.5, 512);
      const size_t row = static_cast<size_t>(token * 3 + h);
      EXPECT_NEAR(result.lse[row], expected.lse, 1e-10);
      EXPECT_NEAR(result.max_logits[row], expected.max, 1e-10);
      for (size_t c = 0; c < 512; ++c) EXPECT_NEAR(result.out[row * 512 + c], expected.out[c], 1e-10);
    }
  }
}

TEST(OracleSparseDecode, EveryRecordAlone) {
  for (Record record : all_records()) {
    SCOPED_TRACE(record_name(record));
    check_pair(record, std::nullopt, record == Record::kBf16 ? 576 : record_dim(record));
  }
}

TEST(OracleSparseDecode, PairsOfCaches) {
  check_pair(Record::kV41Fp8, Record::kV41Fp4, 512);
  check_pair(Record::kV41Fp8Row, Record::kV41Fp4Row, 512);
  check_pair(Record::kV4Fp8, Record::kV41MainFp4, 512);
  check_pair(Record::kV32Nvfp4, Record::kV32Nvfp4, 576);
  check_pair(Record::kBf16, Record::kBf16, 512);
}

struct TwoCaches {
  Cache main{Record::kV41Fp8, 4, 512, 1};
  Cache extra{Record::kV41Fp4, 10, 512, 2};
  Bf16 q{{1, 1, 1, 512}};
  Ints lists = ints({1, 1, 2}, {-1, kTokens});
  Ints extra_lists = ints({1, 1, 2}, {3, 3});
  SparseDecodeArgs args;

  TwoCaches() {
    args.q = q.view();
    args.kv_cache = main.view();
    args.extra_cache = extra.view();
  }
  AttentionResult run() {
    args.indices = lists.view();
    args.extra_indices = extra_lists.view();
    return attention(args, Arithmetic::kDouble);
  }
};

TEST(OracleSparseDecode, ExtraKeysAlone) {
  TwoCaches t;
  const AttentionResult result = t.run();
  EXPECT_NEAR(result.lse[0], std::log(2.0), 1e-12);  // the same token twice
  const std::vector<double> token = t.extra.token(3);
  for (size_t c = 0; c < 512; ++c) EXPECT_NEAR(result.out[c], token[c], 1e-12);
}

TEST(OracleSparseDecode, EachCacheHasItsOwnLimits) {
  TwoCaches t;
  t.lists = ints({1, 1, 2}, {kTokens - 1, kTokens});
  t.extra_lists = ints({1, 1, 2}, {kTokens, std::numeric_limits<int32_t>::min()});
  EXPECT_NEAR(t.run().lse[0], 0, 1e-12);
  const std::vector<double> token = t.main.token(kTokens - 1);
  for (size_t c = 0; c < 512; ++c) EXPECT_NEAR(t.run().out[c], token[c], 1e-12);
}

TEST(OracleSparseDecode, LonelyInBoth) {
  TwoCaches t;
  t.extra_lists = ints({1, 1, 2}, {-7, kTokens});
  const Floats sink = floats({1});
  t.args.attn_sink = sink.view();
  EXPECT_EQ(t.run().lse[0], kInf);
  EXPECT_EQ(t.run().max_logits[0], -kInf);
  EXPECT_THAT(t.run().out, ::testing::Each(0.0));
}

TEST(OracleSparseDecode, OneSinkForBothCaches) {
  TwoCaches t;
  t.lists = ints({1, 1, 2}, {0, 1});
  const AttentionResult plain = t.run();
  EXPECT_NEAR(plain.lse[0], std::log(4.0), 1e-12);
  const Floats sink = floats({static_cast<float>(std::log(4.0))});
  t.args.attn_sink = sink.view();
  const AttentionResult halved = t.run();
  for (size_t c = 0; c < 512; ++c) EXPECT_NEAR(halved.out[c], plain.out[c] / 2, 1e-6);
  EXPECT_EQ(halved.lse[0], plain.lse[0]);
}

}  // namespace
}  // namespace tilewise::oracle_self
