// Invariant 3: one rule for invalid entries, whatever their values and places are.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cases/data.h"
#include "cases/random.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/spoil.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Holes;
using cases::Op;

constexpr int64_t kLowest = std::numeric_limits<int32_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int32_t>::max();

bool has_lists(Op op) { return cases::is_attention(op) && !cases::is_dense(op); }
bool has_entries(Op op) { return cases::is_attention(op) || op == Op::kAppendKv; }

// A tensor of entries that may be invalid, and how many of their values are valid.
struct Entries {
  std::string name;
  int64_t valid = 0;
};

std::vector<Entries> entries_of(const CaseData& data) {
  std::vector<Entries> found;
  const auto add = [&](const char* name, const char* cache, bool blocks) {
    if (!data.has(name)) return;
    const TensorView view = data.view(cache);
    found.push_back({name, blocks || view.rank() != 4 ? view.size(0) : view.size(0) * view.size(1)});
  };
  add("indices", data.has("kv") ? "kv" : "kv_cache", false);
  add("extra_indices", "extra_cache", false);
  add("block_table", "k_cache", true);
  if (data.what().op == Op::kAppendKv) add("slots", "kv_cache", false);
  return found;
}

// Calls `change(value, number of the entry)` for every entry, in any integer type.
template <class Change>
void change_entries(const TensorView& view, const Change& change) {
  int64_t number = 0;
  cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
    const int64_t element = size_of(view.dtype());
    for (int64_t i = 0; i < n; i += element, ++number) {
      if (view.dtype() == DType::kInt64) {
        auto* entry = reinterpret_cast<int64_t*>(run + i);
        *entry = change(*entry, number);
      } else {
        auto* entry = reinterpret_cast<int32_t*>(run + i);
        *entry = static_cast<int32_t>(change(*entry, number));
      }
    }
  });
}

std::vector<int64_t> invalid_values(int64_t valid, DType type) {
  std::vector<int64_t> values = {-1,        -2,          kLowest,      kHighest,     valid,
                                 valid + 1, kLowest + 1, kHighest - 1, 2 * valid + 7};
  // Values whose low 32 bits would be a row.
  if (type == DType::kInt64) {
    for (const int64_t high : {int64_t{1} << 32, -(int64_t{1} << 32), std::numeric_limits<int64_t>::min()}) {
      values.push_back(high);
    }
  }
  return values;
}

class Indices : public OfOperator {};

TEST_P(Indices, InvalidValuesAreAllTheSame) {
  for (Case c : small_cases(GetParam())) {
    c.holes = Holes::kInterleaved;
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      const Bits expected = bits_of(data, kernel);
      for (size_t turn = 0; turn < 3; ++turn) {
        CaseData other = data;
        int64_t changed = 0;
        for (const Entries& entries : entries_of(other)) {
          const TensorView view = other.view(entries.name);
          const std::vector<int64_t> values = invalid_values(entries.valid, view.dtype());
          change_entries(view, [&](int64_t value, int64_t number) {
            if (value >= 0 && value < entries.valid) return value;
            ++changed;
            return values[(static_cast<size_t>(number / 2) + turn) % values.size()];
          });
        }
        EXPECT_GT(changed, 0);
        EXPECT_TRUE(same_bits(expected, bits_of(other, kernel)));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Indices, ::testing::ValuesIn(ops_where(has_entries)), operator_name);

// One token's list [width], as far as its length goes.
std::vector<int32_t> read_list(const CaseData& data, const char* list, const char* length, Token t) {
  const TensorView view = of_token(data.what().op, list, data.view(list), t);
  int64_t count = view.size(view.rank() - 1);
  if (data.has(length)) {
    const int64_t given = *of_token(data.what().op, length, data.view(length), t).data_as<int32_t>();
    count = std::clamp<int64_t>(given, 0, count);
  }
  const int32_t* first = view.data_as<int32_t>();
  return {first, first + count};
}

// Every token's list changed by `change(list)`; all lists of a cache must come out equally long. Lengths go.
template <class Change>
void change_lists(CaseData& data, const Change& change) {
  const Case& c = data.what();
  for (const Entries& entries : entries_of(data)) {
    const std::string length = entries.name == "indices" ? "topk_length" : "extra_topk_length";
    const TensorView old = data.view(entries.name);
    std::vector<int64_t> shape(old.shape().begin(), old.shape().end());
    std::vector<std::vector<int32_t>> lists;
    for (const Token t : all_tokens(c)) {
      lists.push_back(change(read_list(data, entries.name.c_str(), length.c_str(), t), entries.valid));
      ASSERT_EQ(lists.back().size(), lists.front().size());
    }
    shape.back() = static_cast<int64_t>(lists.front().size());
    const TensorView view = replace(data, entries.name, DType::kInt32, shape);
    auto* out = view.data_as<int32_t>();
    for (const std::vector<int32_t>& list : lists) out = std::copy(list.begin(), list.end(), out);
    std::erase_if(data.operands(), [&](const cases::Operand& o) { return o.name == length; });
  }
}

std::vector<int32_t> filtered(std::vector<int32_t> list, int64_t valid) {
  std::erase_if(list, [&](int32_t entry) { return entry < 0 || entry >= valid; });
  return list;
}

// Widths that are multiples of 6 leave every list as many valid entries, whatever the holes are.
std::vector<Case> list_cases(Op op) {
  std::vector<Case> list = small_cases(op);
  for (Case& c : list) {
    c.main.width = 144;
    c.main.lengths = cases::Lengths::kNone;
    if (c.indexer_topk > 0) c.indexer_topk = 24;
    if (!c.extra) continue;
    c.extra->width = 72;
    c.extra->lengths = cases::Lengths::kNone;
  }
  return list;
}

class Lists : public OfOperator {};

TEST_P(Lists, HolesEqualTheFilteredList) {
  for (Case c : list_cases(GetParam())) {
    c.indexer_topk = 0;
    for (const Holes holes : {Holes::kLeading, Holes::kInterleaved, Holes::kTrailing, Holes::kHuge}) {
      c.holes = holes;
      SCOPED_TRACE(name(c));
      CaseData data = cases::make(c);
      CaseData without_holes = data;
      change_lists(without_holes, filtered);
      ASSERT_LT(without_holes.view("indices").numel(), data.view("indices").numel());
      const cases::Truth truth = cases::truth_of(without_holes);
      for_every_kernel(data.args(), [&](const std::string& kernel) {
        bits_of(data, kernel);
        EXPECT_TRUE(agrees(data, truth));
      });
    }
  }
}

// Lists cut by lengths equal lists that end there.
TEST_P(Lists, LengthsCutLists) {
  for (Case c : list_cases(GetParam())) {
    c.holes = Holes::kNone;
    c.indexer_topk = 0;
    c.main.lengths = cases::Lengths::kVaried;
    if (c.extra) c.extra->lengths = cases::Lengths::kVaried;
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    for (const auto& [length, count] : {std::pair{"topk_length", 50}, {"extra_topk_length", 31}}) {
      if (!data.has(length)) continue;
      change_entries(data.view(length), [count = count](int64_t, int64_t) { return count; });
    }
    CaseData cut = data;
    change_lists(cut, [](const std::vector<int32_t>& list, int64_t) { return list; });
    ASSERT_EQ(cut.view("indices").size(cut.view("indices").rank() - 1), 50);
    const cases::Truth truth = cases::truth_of(cut);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      bits_of(data, kernel);
      EXPECT_TRUE(agrees(data, truth));
    });
  }
}

TEST_P(Lists, OrderChangesOnlyRounding) {
  for (Case c : list_cases(GetParam())) {
    c.holes = Holes::kHuge;
    c.indexer_topk = 0;
    SCOPED_TRACE(name(c));
    const CaseData data = cases::make(c);
    const cases::Truth truth = cases::truth_of(data);
    CaseData shuffled = data;
    change_lists(shuffled, [](const std::vector<int32_t>& list, int64_t) {
      const cases::Shuffle order({7}, static_cast<int64_t>(list.size()));
      std::vector<int32_t> other;
      for (size_t i = 0; i < list.size(); ++i) {
        other.push_back(list[static_cast<size_t>(order.at(static_cast<int64_t>(i)))]);
      }
      EXPECT_NE(other, list);
      return other;
    });
    for_every_kernel(shuffled.args(), [&](const std::string& kernel) {
      bits_of(shuffled, kernel);
      EXPECT_TRUE(agrees(shuffled, truth));
    });
  }
}

// A list twice: every weight doubles, so lse grows by ln 2 and nothing else changes.
TEST_P(Lists, DuplicatesCountAsOftenAsListed) {
  for (Case c : list_cases(GetParam())) {
    c.sink = cases::Sink::kNone;
    c.indexer_topk = 0;
    SCOPED_TRACE(name(c));
    const CaseData data = cases::make(c);
    cases::Truth truth = cases::truth_of(data);
    for (reference::AttentionResult* result : {&truth.exact, &truth.rounded}) {
      for (double& lse : result->lse) lse += std::log(2.0);
    }
    CaseData doubled = data;
    change_lists(doubled, [](std::vector<int32_t> list, int64_t) {
      const std::vector<int32_t> once = list;
      list.insert(list.end(), once.begin(), once.end());
      return list;
    });
    for_every_kernel(doubled.args(), [&](const std::string& kernel) {
      bits_of(doubled, kernel);
      EXPECT_TRUE(agrees(doubled, truth));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Lists, ::testing::ValuesIn(ops_where(has_lists)), operator_name);

}  // namespace
}  // namespace tilewise::testing
