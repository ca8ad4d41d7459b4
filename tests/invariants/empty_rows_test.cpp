// Invariant 2: rows that attend to nothing, alone and beside rows that do.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint8_t kLonelyExponent = 105;

// How a row loses its keys. Partial results: all of them have an lse of -inf, or of +inf.
enum class Way { kNoLength, kNoValidEntry };

void set_int32(const TensorView& view, int32_t value) {
  cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) std::memcpy(run + i, &value, 4);
  });
}

void set_float(const TensorView& view, float value) {
  cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) std::memcpy(run + i, &value, 4);
  });
}

void for_tensors(CaseData& data, std::initializer_list<const char*> names, Token t,
                 const std::function<void(const TensorView&)>& use) {
  for (const char* name : names) {
    if (data.has(name)) use(of_token(data.what().op, name, data.view(name), t));
  }
}

void empty(CaseData& data, Token t, Way way) {
  if (cases::is_combine(data.what().op)) {
    const float lse = way == Way::kNoLength ? -kInf : kInf;
    for_tensors(data, {"lse_partials"}, t, [&](const TensorView& view) { set_float(view, lse); });
    for_tensors(data, {"out_partials"}, t, [](const TensorView& view) { fill_elements(view, Fill::kNan); });
  } else if (way == Way::kNoLength) {
    for_tensors(data, {"topk_length", "extra_topk_length", "cache_seqlens"}, t,
                [](const TensorView& view) { set_int32(view, 0); });
  } else {
    for_tensors(data, {"indices", "extra_indices", "block_table"}, t,
                [](const TensorView& view) { set_int32(view, -1); });
  }
}

// A case whose rows all have keys, and lengths that can be taken from them.
CaseData make_full(Case c) {
  c.main.lengths = cases::Lengths::kVaried;
  if (c.extra) c.extra->lengths = cases::Lengths::kVaried;
  if (cases::is_combine(c.op)) c.holes = cases::Holes::kNone;
  CaseData data = cases::make(c);
  for (const auto& [name, width] : {std::pair{"topk_length", c.main.width},
                                    {"cache_seqlens", c.main.width},
                                    {"extra_topk_length", c.extra ? c.extra->width : 0}}) {
    if (!data.has(name)) continue;
    const TensorView lengths = data.view(name);
    for (int64_t i = 0; i < lengths.size(0); ++i) {
      lengths.data_as<int32_t>()[i * lengths.stride(0)] = static_cast<int32_t>(width - 7 * i);
    }
  }
  return data;
}

// Tokens that lose their keys together with `t`: lengths and block tables belong to requests.
bool shares_fate(Op op, Way way, Token t, Token other) {
  const bool by_request = op == Op::kDenseDecode || (op == Op::kSparseDecode && way == Way::kNoLength);
  return t.request == other.request && (by_request || t.token == other.token);
}

std::vector<float> floats(const TensorView& view) {
  std::vector<float> values;
  const int64_t element = size_of(view.dtype());
  cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
    for (int64_t i = 0; i < n; i += element) values.push_back(float_at(run + i, view.dtype()));
  });
  return values;
}

// sink_bias [h]; -inf where there is none. Training's sink takes all the weight of a lonely row.
std::vector<float> lonely_lse(const CaseData& data) {
  if (!data.has("sink_bias")) return std::vector<float>(static_cast<size_t>(data.what().h_q), kInf);
  std::vector<float> lse = floats(data.view("sink_bias"));
  for (float& x : lse) x = x == -kInf ? kInf : x;
  return lse;
}

void expect_lonely(const CaseData& data, Token t) {
  const auto of = [&](const char* name) { return of_token(data.what().op, name, data.view(name), t); };
  const auto expect_all = [&](const char* name, float value) {
    if (data.has(name)) {
      EXPECT_THAT(floats(of(name)), ::testing::Each(value)) << name;
    }
  };
  for (const char* name : {"out", "out_bf16", "o_accum"}) expect_all(name, 0.0f);
  expect_all("max_logits", -kInf);
  expect_all("lse_accum", -kInf);
  expect_all("lse_indexer", kInf);
  if (data.has("lse")) {
    EXPECT_EQ(floats(of("lse")), lonely_lse(data));
  }
  if (!data.has("out_fp8")) return;
  EXPECT_THAT(cases::contents(of("out_fp8")), ::testing::Each(uint8_t{0}));
  EXPECT_THAT(cases::contents(of("out_sf")), ::testing::Each(kLonelyExponent));
}

class EmptyRows : public OfOperator {};

TEST_P(EmptyRows, AloneAndBesideFullRows) {
  for (const Case& c : batch_invariant(small_cases(GetParam()))) {
    SCOPED_TRACE(name(c));
    CaseData full = make_full(c);
    const std::vector<Token> tokens = all_tokens(full.what());
    for_every_kernel(full.args(), [&](const std::string& kernel) {
      bits_of(full, kernel);
      for (const Way way : {Way::kNoLength, Way::kNoValidEntry}) {
        for (const Token hit : tokens) {
          CaseData one = full;
          CaseData others = full;
          for (const Token t : tokens) empty(shares_fate(c.op, way, hit, t) ? one : others, t, way);
          bits_of(one, kernel);
          bits_of(others, kernel);
          for (const Token t : tokens) {
            const bool is_hit = shares_fate(c.op, way, hit, t);
            expect_lonely(is_hit ? one : others, t);
            EXPECT_TRUE(same_bits(token_bits(full, t), token_bits(is_hit ? others : one, t)));
          }
        }
        CaseData none = full;
        for (const Token t : tokens) empty(none, t, way);
        bits_of(none, kernel);
        for (const Token t : tokens) expect_lonely(none, t);
      }
    });
  }
}

// No key at all: lists of no entries, caches of no rows, no partial results.
TEST_P(EmptyRows, NothingToSelectFrom) {
  for (Case c : small_cases(GetParam())) {
    SCOPED_TRACE(name(c));
    Case no_entries = c;
    no_entries.main.width = 0;
    if (no_entries.extra) no_entries.extra->width = 0;
    no_entries.num_splits = c.op == Op::kFusedDecodePartials ? c.num_splits : 0;
    no_entries.indexer_topk = 0;
    CaseData data = cases::make(no_entries);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      bits_of(data, kernel);
      for (const Token t : all_tokens(c)) expect_lonely(data, t);
    });
    if (cases::is_combine(c.op)) continue;

    CaseData no_rows = cases::make(c);
    for (const char* cache : {"kv", "k_cache", "kv_cache", "extra_cache"}) {
      if (!no_rows.has(cache)) continue;
      const TensorView view = no_rows.view(cache);
      std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
      shape[0] = 0;
      replace(no_rows, cache, view.dtype(), shape);
    }
    for_every_kernel(no_rows.args(), [&](const std::string& kernel) {
      bits_of(no_rows, kernel);
      for (const Token t : all_tokens(c)) expect_lonely(no_rows, t);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmptyRows,
                         ::testing::ValuesIn(ops_where([](Op op) { return !cases::is_kv_move(op); })),
                         operator_name);

class NoRows : public OfOperator {};

TEST_P(NoRows, NothingIsWritten) {
  for (Case c : with_layout(small_cases(GetParam()), cases::Layout::kViews)) {
    SCOPED_TRACE(name(c));
    std::vector<Case> empties(1, c);
    empties[0].s_q = 0;
    if (c.op == Op::kDenseDecode || c.op == Op::kSparseDecode) {
      empties.push_back(c);
      empties[1].batch = 0;
    }
    for (const Case& nothing : empties) {
      CaseData data = cases::make(nothing);
      const Bits before = data.output_bits();
      for_every_kernel(data.args(), [&](const std::string& kernel) {
        EXPECT_TRUE(same_bits(before, bits_of(data, kernel)));
        EXPECT_EQ(data.disturbed_output(), "");
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NoRows, ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

// Causal and aligned at their ends: of three queries the last one alone sees the only key, and V is that key.
TEST(MoreQueriesThanKeys, LeaveTheFirstQueriesLonely) {
  for (Case c : small_dense_cases()) {
    if (!c.causal) continue;
    SCOPED_TRACE(name(c));
    c.batch = 1;
    CaseData data = cases::make(c);
    set_int32(data.view("cache_seqlens"), 1);
    const cases::Truth truth = cases::truth_of(data);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      bits_of(data, kernel);
      expect_lonely(data, {0, 0});
      expect_lonely(data, {0, 1});
      EXPECT_THAT(floats(of_token(c.op, "lse", data.view("lse"), {0, 2})),
                  ::testing::Each(::testing::Truly([](float x) { return std::isfinite(x); })));
      EXPECT_TRUE(agrees(data, truth));
    });
  }
}

}  // namespace
}  // namespace tilewise::testing
