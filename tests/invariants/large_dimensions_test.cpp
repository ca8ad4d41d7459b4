// Invariant 6: dimensions past 65,536 work or are refused. Every query has one key, so that its output must
// be that key's values, exactly.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cases/data.h"
#include "cases/fill.h"
#include "formats/codec.h"
#include "tests/support/every_kernel.h"
#include "tests/support/spoil.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr int64_t kRows = 48;

// Slow builds run the same tests with less.
int64_t many() { return smoke() ? 515 : 65537; }
int64_t many_heads() { return smoke() ? 512 : 65600; }

const char* cache_of(const CaseData& data) {
  return data.has("kv") ? "kv" : data.has("k_cache") ? "k_cache" : "kv_cache";
}

Case one_key_case(Op op) {
  Case c;
  c.op = op;
  c.d_qk = 512;
  c.main = {.record = Record::kBf16, .page = cases::is_dense(op) ? 1 : 8, .width = 1, .rows = kRows};
  c.q_scale = 0.01f;
  c.store = cases::FusedStore::kBf16;
  return c;
}

// Token i lists row i % kRows alone, at the end of its list; no rotation turns the values.
CaseData make_one_key(const Case& c) {
  CaseData data = cases::make(c);
  if (data.has("token_positions")) fill_elements(data.view("token_positions"), Fill::kZeros);
  const bool dense = cases::is_dense(c.op);
  const TensorView lists = data.view(dense ? "block_table" : "indices");
  const int64_t width = lists.size(lists.rank() - 1);
  for (int64_t i = 0; i < lists.numel(); ++i) {
    const bool last = (i + 1) % width == 0;
    lists.data_as<int32_t>()[i] = last ? static_cast<int32_t>(i / width % kRows) : -1;
  }
  return data;
}

// A cached row's values in the type of the output.
std::vector<uint8_t> values_of(const CacheView& cache, int64_t slot, DType type) {
  const uint8_t* key = cache.block(slot) + slot % cache.page() * cache.d * 2;
  std::vector<uint8_t> values(static_cast<size_t>(kValueColumns * size_of(type)));
  for (int64_t i = 0; i < kValueColumns; ++i) {
    cases::store_float(values.data() + i * size_of(type), type, float_at(key + 2 * i, DType::kBF16));
  }
  return values;
}

// Row r of the output, in the order of its elements, belongs to token r / h_q.
void expect_values_of_keys(const CaseData& data) {
  const CacheView cache = cache_view(data, cache_of(data));
  const TensorView out = data.view(data.has("out_bf16")  ? "out_bf16"
                                   : data.has("o_accum") ? "o_accum"
                                                         : "out");
  std::vector<std::vector<uint8_t>> rows;
  for (int64_t slot = 0; slot < kRows; ++slot) rows.push_back(values_of(cache, slot, out.dtype()));
  const size_t bytes = rows[0].size();
  int64_t wrong = 0;
  for (int64_t row = 0; row < out.numel() / kValueColumns; ++row) {
    const std::vector<uint8_t>& expected = rows[static_cast<size_t>(row / data.what().h_q % kRows)];
    const uint8_t* got = out.data_as<uint8_t>() + row * static_cast<int64_t>(bytes);
    wrong += std::memcmp(got, expected.data(), bytes) == 0 ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0);
}

void expect_one_key_each(const Case& c) {
  SCOPED_TRACE(name(c));
  CaseData data = make_one_key(c);
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    bits_of(data, kernel);
    expect_values_of_keys(data);
  });
}

class LargeDimensions : public OfOperator {};

TEST_P(LargeDimensions, QueryTokens) {
  Case c = one_key_case(GetParam());
  c.s_q = many();
  if (cases::is_dense(c.op)) {
    // Every query sees the key at its own place.
    c.main.width = many();
    c.window = {0, 0};
    CaseData data = cases::make(c);
    const TensorView table = data.view("block_table");
    for (int64_t i = 0; i < many(); ++i) table.data_as<int32_t>()[i] = static_cast<int32_t>(i % kRows);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      bits_of(data, kernel);
      expect_values_of_keys(data);
    });
    return;
  }
  expect_one_key_each(c);
}

TEST_P(LargeDimensions, Heads) {
  Case c = one_key_case(GetParam());
  c.h_q = many_heads();
  expect_one_key_each(c);
}

TEST_P(LargeDimensions, EntriesOfAList) {
  Case c = one_key_case(GetParam());
  c.main.width = many();
  expect_one_key_each(c);
}

TEST_P(LargeDimensions, RowsOfTheCache) {
  Case c = one_key_case(GetParam());
  c.main.rows = many();
  CaseData data = make_one_key(c);
  const TensorView lists = data.view(cases::is_dense(c.op) ? "block_table" : "indices");
  const CacheView cache = cache_view(data, cache_of(data));
  // The values of row 0 stand in the last row too, and only there.
  const int64_t last = cache.slots() - 1;
  const auto row_of = [&](int64_t slot) { return cache.block(slot) + slot % cache.page() * cache.d * 2; };
  std::memcpy(row_of(last), row_of(0), static_cast<size_t>(cache.d) * 2);
  lists.data_as<int32_t>()[0] = static_cast<int32_t>(last);
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    bits_of(data, kernel);
    expect_values_of_keys(data);
  });
}

INSTANTIATE_TEST_SUITE_P(All, LargeDimensions, ::testing::ValuesIn(ops_where(cases::is_attention)),
                         operator_name);

TEST(LargeBatches, AreWalked) {
  for (const Op op : {Op::kDenseDecode, Op::kSparseDecode}) {
    Case c = one_key_case(op);
    c.batch = many();
    expect_one_key_each(c);
  }
}

// All partial results are empty but the last one.
TEST(LargeMerges, OfManyPartialsTokensAndHeads) {
  Case c;
  c.op = Op::kCombinePartials;
  c.d_qk = 8;
  c.dtype = DType::kFP32;
  c.out_dtype = DType::kFP32;
  for (int64_t Case::* dimension : {&Case::num_splits, &Case::s_q, &Case::h_q}) {
    Case large = c;
    large.*dimension = dimension == &Case::h_q ? many_heads() : many();
    SCOPED_TRACE(name(large));
    CaseData data = cases::make(large);
    const TensorView lse = data.view("lse_partials");
    const int64_t rows = large.s_q * large.h_q;
    for (int64_t i = 0; i < lse.numel(); ++i)
      lse.data_as<float>()[i] = i < lse.numel() - rows ? -HUGE_VALF : 2.5f;
    const TensorView parts = data.view("out_partials");
    const auto* last = parts.data_as<uint8_t>() + (parts.numel() - rows * c.d_qk) * 4;
    const std::vector<uint8_t> expected(last, last + rows * c.d_qk * 4);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      bits_of(data, kernel);
      EXPECT_TRUE(cases::contents(data.view("out")) == expected);
    });
  }
}

// Rows into slots and back: of n copies of two rows, each must be where it was sent.
TEST(LargeMoves, OfManyRows) {
  Case c;
  c.op = Op::kAppendKv;
  c.s_q = many();
  c.dtype = DType::kInt32;
  c.main = {.record = Record::kV41Fp4Row, .page = 1, .rows = many() + 3};
  CaseData data = cases::make(c);
  const TensorView rows = data.view("kv");
  for (int64_t i = 2; i < c.s_q; ++i) {
    std::memcpy(rows.data_as<uint8_t>() + i * 1024, rows.data_as<uint8_t>() + i % 2 * 1024, 1024);
  }
  const TensorView slots = data.view("slots");
  for (int64_t i = 0; i < c.s_q; ++i) slots.data_as<int32_t>()[i] = static_cast<int32_t>(c.s_q - i);
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    bits_of(data, kernel);
    const CacheView cache = cache_view(data, "kv_cache");
    const auto bytes = static_cast<size_t>(cache.view.size(3));
    int64_t wrong = 0;
    for (int64_t i = 2; i < c.s_q; ++i) {
      wrong += std::memcmp(cache.block(c.s_q - i), cache.block(c.s_q - i % 2), bytes) == 0 ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(data.disturbed_output(), "");
  });
}

// Many rows for few slots, near ones and far ones: the last one stays.
TEST(LargeMoves, LastRowOfASlot) {
  Case c;
  c.op = Op::kAppendKv;
  c.s_q = many();
  c.dtype = DType::kInt64;
  c.main = {.record = Record::kV41Fp4Row, .page = 1, .rows = 1009};
  CaseData data = cases::make(c);
  const TensorView rows = data.view("kv");
  const TensorView slots = data.view("slots");
  std::vector<int64_t> last(static_cast<size_t>(c.main.rows), -1);
  for (int64_t i = 0; i < c.s_q; ++i) {
    const int64_t slot = i % 7 == 0 ? i / 7 % 2000 - 500 : i / 70 * 13 % c.main.rows;
    slots.data_as<int64_t>()[i] = slot;
    if (slot >= 0 && slot < c.main.rows) last[static_cast<size_t>(slot)] = i;
  }
  const formats::RecordSpec spec = formats::record_spec(c.main.record);
  std::vector<uint8_t> expected(static_cast<size_t>(formats::token_bytes(spec)));
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    bits_of(data, kernel);
    const CacheView cache = cache_view(data, "kv_cache");
    int64_t wrong = 0;
    for (int64_t slot = 0; slot < c.main.rows; ++slot) {
      const int64_t row = last[static_cast<size_t>(slot)];
      if (row < 0) continue;
      const auto* x = reinterpret_cast<const BF16*>(rows.data_as<uint16_t>() + row * rows.stride(0));
      formats::encode_row(spec, x, expected.data(), 1, 0);
      wrong += std::memcmp(cache.block(slot), expected.data(), expected.size()) == 0 ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(data.disturbed_output(), "");
  });
}

// Dimensions that 32 bits cannot count, without the memory for them: a stride of 0.
TEST(TooLargeDimensions, AreRefusedByName) {
  constexpr int64_t kTooMany = int64_t{1} << 31;
  for (const Op op : ops_where(cases::is_attention)) {
    CaseData data = cases::make(one_key_case(op));
    const TensorView q = data.view("q");
    const bool batched = q.rank() == 4;
    std::vector<int64_t> shape(q.shape().begin(), q.shape().end());
    std::vector<int64_t> strides(q.strides().begin(), q.strides().end());
    shape[batched ? 1 : 0] = kTooMany;
    strides[batched ? 1 : 0] = 0;
    data.operand("q").view = TensorView(q.data(), q.dtype(), shape, strides);
    SCOPED_TRACE(op_name(op));
    try {
      cases::plan_case(data.args(), device());
      ADD_FAILURE() << "was planned";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(),
                  ::testing::AllOf(::testing::StartsWith(op_name(op)), ::testing::HasSubstr("q must be"),
                                   ::testing::HasSubstr("2147483648")));
    }
  }
}

}  // namespace
}  // namespace tilewise::testing
