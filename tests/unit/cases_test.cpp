// The case list that tests, tools and benchmarks share: what its sets hold, and what its data can be trusted
// with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cases/data.h"
#include "cases/random.h"
#include "cases/sets.h"
#include "cases/space.h"
#include "cases/work.h"

namespace tilewise::cases {
namespace {

using ::testing::IsSupersetOf;

template <class Get>
auto values_of(const std::vector<Case>& cases, Get get) {
  std::set<decltype(get(cases.front()))> values;
  for (const Case& c : cases) values.insert(get(c));
  return values;
}

class EveryOperator : public ::testing::TestWithParam<Op> {};

TEST_P(EveryOperator, NamesAreUnique) {
  for (const auto& cases : {smoke_cases(GetParam()), full_cases(GetParam())}) {
    EXPECT_EQ(values_of(cases, [](const Case& c) { return name(c); }).size(), cases.size());
  }
}

TEST_P(EveryOperator, CiSetIsSmallAndCoversWhatItMust) {
  const std::vector<Case> cases = ci_cases(GetParam());
  EXPECT_LE(cases.size(), 120u);
  if (has_cache_records(GetParam())) {
    const auto key = [](Record main, const std::optional<Record>& extra, int64_t d) {
      return std::string(record_name(main)) + "+" + (extra ? record_name(*extra) : "") + " " +
             std::to_string(d);
    };
    const auto found = values_of(cases, [&](const Case& c) {
      return key(c.main.record, c.extra ? std::optional(c.extra->record) : std::nullopt, c.d_qk);
    });
    for (const RecordChoice& choice : record_choices(GetParam())) {
      EXPECT_TRUE(found.count(key(choice.main, choice.extra, choice.d)) > 0)
          << key(choice.main, choice.extra, choice.d);
    }
  }
  if (!is_kv_move(GetParam())) {
    EXPECT_THAT(values_of(cases, [](const Case& c) { return c.h_q; }), IsSupersetOf(grid_sizes().heads));
  }
}

TEST_P(EveryOperator, CiSetHasEveryPairOfSmallFactors) {
  const Space space = space_of(GetParam(), grid_sizes());
  const Chosen chosen = choose_pairwise(space, 114);
  for (size_t f = 0; f < space.factors.size(); ++f) {
    std::set<int> levels;
    for (const auto& l : chosen.levels) levels.insert(l[f]);
    EXPECT_EQ(static_cast<int>(levels.size()), space.factors[f].levels) << space.factors[f].name;
    for (size_t g = 0; g < f; ++g) {
      const int wanted = space.factors[f].levels * space.factors[g].levels;
      if (wanted > 16) continue;
      std::set<std::pair<int, int>> pairs;
      for (const auto& l : chosen.levels) pairs.emplace(l[f], l[g]);
      EXPECT_EQ(static_cast<int>(pairs.size()), wanted)
          << space.factors[f].name << " x " << space.factors[g].name;
    }
  }
}

TEST_P(EveryOperator, FullSetHasTheWholeGrid) {
  if (!is_attention(GetParam())) return;
  const Sizes sizes = grid_sizes();
  const auto found =
      values_of(full_cases(GetParam()), [](const Case& c) { return std::tuple{c.h_q, c.main.width, c.s_q}; });
  for (const int64_t h : sizes.heads) {
    for (const int64_t width : sizes.widths) {
      for (const int64_t s_q : sizes.tokens)
        EXPECT_EQ(found.count({h, width, s_q}), 1u) << h << " " << width << " " << s_q;
    }
  }
}

TEST_P(EveryOperator, EverySmokeCaseIsAcceptedAndSmall) {
  for (const Case& c : smoke_cases(GetParam())) {
    const CaseData data = make(c);
    int64_t bytes = 0;
    for (const Operand& o : data.operands()) bytes += o.memory.bytes();
    EXPECT_LT(bytes, 32 << 20) << name(c);
    EXPECT_NO_THROW(std::visit([](const auto& args) { plan(args, Device::cpu()); }, data.args())) << name(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EveryOperator, ::testing::ValuesIn(all_ops().begin(), all_ops().end()),
                         [](const auto& of) { return std::string(op_name(of.param)); });

TEST(Cases, AreFoundByName) {
  for (const Case& c : {demo_cases().back(), bench_cases().front(), ci_cases(Op::kSparseDecode).back()}) {
    EXPECT_EQ(find_case(name(c)), c);
  }
  EXPECT_EQ(find_case("sparse_decode of nothing"), std::nullopt);
}

TEST(Cases, DemoAndBenchRunEveryRecordAndPair) {
  for (const auto& cases : {demo_cases(), bench_cases()}) {
    for (const RecordChoice& choice : record_choices(Op::kSparseDecode)) {
      EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const Case& c) {
        return c.op == Op::kSparseDecode && c.main.record == choice.main && c.d_qk == choice.d &&
               c.extra.has_value() == choice.extra.has_value() &&
               (!c.extra || c.extra->record == *choice.extra);
      })) << record_name(choice.main);
    }
  }
}

TEST(Random, ShufflesArePermutations) {
  for (const int64_t n : {1, 2, 3, 4, 5, 63, 64, 65, 1000}) {
    const Shuffle shuffle({42}, n);
    std::vector<bool> seen(static_cast<size_t>(n), false);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t x = shuffle.at(i);
      ASSERT_TRUE(x >= 0 && x < n && !seen[static_cast<size_t>(x)]) << n << ": " << i;
      seen[static_cast<size_t>(x)] = true;
    }
  }
}

TEST(Random, NormalNumbersHaveMeanZeroAndVarianceOne) {
  const Stream64 random{5};
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100000;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = random.normal(i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
}

// A small case with gaps everywhere.
Case views_case() {
  Case c;
  c.op = Op::kSparseDecode;
  c.batch = 2;
  c.s_q = 3;
  c.h_q = 4;
  c.main = {.record = Record::kV41Fp8, .page = 4, .width = 9, .rows = 30, .lengths = Lengths::kOutside};
  c.holes = Holes::kHuge;
  c.layout = Layout::kViews;
  return c;
}

TEST(CaseData, IsTheSameEveryTime) {
  EXPECT_EQ(make(views_case()).inputs_fingerprint(), make(views_case()).inputs_fingerprint());
  Case other = views_case();
  other.seed = 1;
  EXPECT_NE(make(views_case()).inputs_fingerprint(), make(other).inputs_fingerprint());
}

TEST(CaseData, CopiesHaveMemoryOfTheirOwn) {
  CaseData data = make(views_case());
  CaseData copy = data;
  EXPECT_EQ(copy.inputs_fingerprint(), data.inputs_fingerprint());
  EXPECT_NE(copy.view("q").data(), data.view("q").data());
  EXPECT_EQ(std::get<SparseDecodeArgs>(copy.args()).q.data(), copy.view("q").data());
  copy.view("q").data_as<uint16_t>()[1] ^= 1;
  EXPECT_NE(copy.inputs_fingerprint(), data.inputs_fingerprint());
  EXPECT_THROW(data.operand("no such argument"), std::out_of_range);
}

// The fingerprint and the canaries must see a single changed byte anywhere.
TEST(CaseData, NoticesEveryStrayByte) {
  CaseData data = make(views_case());
  const uint64_t before = data.inputs_fingerprint();
  Operand& q = data.operand("q");
  for (const int64_t at :
       {int64_t{0}, q.memory.before() - 1, q.memory.before() + 7, q.memory.whole_bytes() - 1}) {
    q.memory.whole([&](uint8_t* p) { p[at] ^= 1; });
    EXPECT_NE(data.inputs_fingerprint(), before) << at;
    q.memory.whole([&](uint8_t* p) { p[at] ^= 1; });
  }
  EXPECT_EQ(data.inputs_fingerprint(), before);

  for (const char* output : {"out", "lse"}) {
    Operand& o = data.operand(output);
    std::vector<bool> element(static_cast<size_t>(o.memory.whole_bytes()), false);
    for_each_run(o.view, [&](uint8_t* run, int64_t n) {
      const int64_t first = run - o.memory.data() + o.memory.before();
      std::fill_n(element.begin() + first, n, true);
    });
    EXPECT_EQ(std::count(element.begin(), element.end(), true), o.view.numel() * size_of(o.view.dtype()));
    for (int64_t at = 0; at < o.memory.whole_bytes(); at += 3) {
      o.memory.whole([&](uint8_t* p) { p[at] ^= 0x80; });
      ASSERT_EQ(data.disturbed_output(), element[static_cast<size_t>(at)] ? "" : output) << at;
      o.memory.whole([&](uint8_t* p) { p[at] ^= 0x80; });
    }
    o.memory.whole([&](uint8_t* p) { p[o.memory.before()] = 0x11; });
  }
  const auto spoilt = data.output_bits();
  data.reset_outputs();
  EXPECT_NE(data.output_bits(), spoilt);
}

TEST(Work, CountsListEntries) {
  CaseData data = make(views_case());
  const auto args = std::get<SparseDecodeArgs>(data.args());
  // Rewritten by hand: two requests, of which the first counts 3 entries of a list and the second none.
  args.topk_length.data_as<int32_t>()[0] = 3;
  args.topk_length.data_as<int32_t>()[1] = -5;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 3; ++s) {
      int32_t* list =
          args.indices.data_as<int32_t>() + b * args.indices.stride(0) + s * args.indices.stride(1);
      const std::vector<int32_t> entries = {2, 32, 2, 7, 7, 7, 7, 7, 7};  // 32 slots: 0..31
      std::copy(entries.begin(), entries.end(), list);
    }
  }
  const Selection found = selection(data);
  ASSERT_EQ(found.main.size(), 32u);
  EXPECT_EQ(found.main[2], 6);
  EXPECT_EQ(std::count(found.main.begin(), found.main.end(), 0), 31);
  const Work w = work(data);
  EXPECT_EQ(w.pairs, 6);
  EXPECT_EQ(w.flops, 2.0 * 6 * 4 * (512 + 512));
}

TEST(Work, CountsDenseKeysUnderTheMask) {
  Case c;
  c.op = Op::kDenseDecode;
  c.s_q = 3;
  c.h_q = 2;
  c.main = {.page = 4, .width = 10};
  c.causal = true;
  c.window = {.left = 1, .right = -1};
  // Queries at positions 7, 8, 9 see two keys each.
  CaseData data = make(c);
  EXPECT_EQ(work(data).pairs, 6);
  const auto args = std::get<DenseDecodeArgs>(data.args());
  // Keys 8 and 9 lie in the third block; without it three pairs are left.
  args.block_table.data_as<int32_t>()[2] = -1;
  EXPECT_EQ(work(data).pairs, 3);
}

}  // namespace
}  // namespace tilewise::cases
