// The sets of cases: smoke, ci and full for tests; demo; bench.
#include "cases/sets.h"

#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "cases/random.h"
#include "cases/space.h"

namespace tilewise::cases {
namespace {

// Beside the pairs: nothing to do at all, and more heads than one tile of anything has.
std::vector<Case> edge_cases(Op op) {
  Case plain = at(space_of(op, grid_sizes()), std::vector<int>(space_of(op, grid_sizes()).factors.size(), 0));
  plain.h_q = 8;
  plain.s_q = 3;
  if (is_attention(op)) plain.main.width = 70;
  std::vector<Case> cases;
  const auto with = [&](auto change) {
    Case c = plain;
    change(c);
    cases.push_back(c);
  };
  with([](Case& c) { c.s_q = 0; });
  if (is_kv_move(op)) return cases;
  with([](Case& c) { c.h_q = 192; });
  if (is_combine(op)) {
    with([](Case& c) { c.num_splits = 0; });
    return cases;
  }
  with([](Case& c) { c.main.width = 0; });
  if (op == Op::kDenseDecode || op == Op::kSparseDecode) with([](Case& c) { c.batch = 0; });
  // So many keys a row that kernels cut them into pieces for their threads.
  with([](Case& c) {
    c.h_q = 2;
    c.s_q = 1;
    c.main.width = 2600;
  });
  // A page larger than all that is attended, and logits of a whole row below what fp32's exp can tell from 0.
  with([](Case& c) {
    c.main.page = 1000;
    c.logit_offset = -1e4f;
  });
  return cases;
}

std::vector<Case> joined(std::vector<Case> a, const std::vector<Case>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

size_t factor_named(const Space& space, std::string_view name) {
  for (size_t f = 0; f < space.factors.size(); ++f) {
    if (space.factors[f].name == name) return f;
  }
  throw std::logic_error("no such factor: " + std::string(name));
}

CacheCase cache(Record record, int64_t width, int64_t rows) {
  return {.record = record, .page = 64, .width = width, .rows = rows};
}

Case attention_case(Op op, int64_t batch, int64_t s_q, int64_t h_q, int64_t d, const CacheCase& main) {
  Case c;
  c.op = op;
  c.batch = batch;
  c.s_q = s_q;
  c.h_q = h_q;
  c.d_qk = d;
  c.main = main;
  if (is_fused(op)) {
    c.q_norm_eps = 1e-6f;
    c.n_groups = 8;
  }
  return c;
}

Case dense_case(int64_t batch, int64_t s_q, int64_t h_q, int64_t d, int64_t keys, DType type) {
  Case c = attention_case(Op::kDenseDecode, batch, s_q, h_q, d, cache(Record::kBf16, keys, 0));
  c.dtype = type;
  c.causal = true;
  return c;
}

// The shapes of the models that a record belongs to: long lists for 576 columns, a window and a short list
// for 512.
Case record_case(Op op, int64_t tokens, int64_t h_q, const RecordChoice& choice, int64_t rows) {
  const bool batched = op == Op::kSparseDecode;
  const int64_t width = choice.d == 576 ? 2048 : 640;
  Case c = attention_case(op, batched ? tokens : 1, batched ? 1 : tokens, h_q, choice.d,
                          cache(choice.main, choice.extra ? 128 : width, rows));
  if (choice.extra) c.extra = cache(*choice.extra, width - 128, rows);
  return c;
}

constexpr RecordChoice kV41Pair{Record::kV41Fp8, Record::kV41Fp4, 512};

Case merge_case(Op op, int64_t num_splits) {
  Case c;
  c.op = op;
  c.s_q = 64;
  c.h_q = 64;
  c.num_splits = num_splits;
  c.dtype = DType::kFP32;
  c.n_groups = op == Op::kCombinePartialsFused ? 8 : 1;
  return c;
}

void add_moves(std::vector<Case>& cases, Op op, const RecordChoice& choice, int64_t n, int64_t rows) {
  Case c;
  c.op = op;
  c.s_q = n;
  c.d_qk = choice.d;
  c.main = cache(choice.main, 0, rows);
  if (op == Op::kAppendKv) c.dtype = DType::kInt64;
  cases.push_back(c);
}

}  // namespace

std::vector<Case> smoke_cases(Op op) {
  const size_t limit = is_attention(op) ? 24 : 14;
  return joined(edge_cases(op), choose_pairwise(space_of(op, small_sizes()), limit).cases);
}

std::vector<Case> ci_cases(Op op) {
  const std::vector<Case> edges = edge_cases(op);
  return joined(edges, choose_pairwise(space_of(op, grid_sizes()), 120 - edges.size()).cases);
}

std::vector<Case> full_cases(Op op) {
  std::vector<Case> cases = ci_cases(op);
  if (!is_attention(op)) return cases;
  Sizes sizes = grid_sizes();
  sizes.batches = {1};
  sizes.most_pairs = std::numeric_limits<int64_t>::max();
  const Space space = space_of(op, sizes);
  const size_t heads = factor_named(space, "heads");
  const size_t widths = factor_named(space, "width");
  const size_t tokens = factor_named(space, "tokens");
  const Stream64 random{hash_text(op_name(op))};
  uint64_t draws = 0;
  for (int h = 0; h < space.factors[heads].levels; ++h) {
    for (int w = 0; w < space.factors[widths].levels; ++w) {
      for (int t = 0; t < space.factors[tokens].levels; ++t) {
        std::vector<int> levels;
        for (const Factor& factor : space.factors) {
          levels.push_back(static_cast<int>(random.below(draws++, factor.levels)));
        }
        levels[heads] = h;
        levels[widths] = w;
        levels[tokens] = t;
        cases.push_back(at(space, levels));
      }
    }
  }
  return cases;
}

TestSet test_set() {
  const char* value = std::getenv("TILEWISE_TEST_SET");
  const std::string set = value == nullptr || *value == '\0' ? "ci" : value;
  if (set == "smoke") return TestSet::kSmoke;
  if (set == "ci") return TestSet::kCi;
  if (set == "full") return TestSet::kFull;
  throw std::invalid_argument("TILEWISE_TEST_SET must be smoke, ci or full, got " + set);
}

std::vector<Case> test_cases(Op op) {
  const TestSet set = test_set();
  if (set == TestSet::kSmoke) return smoke_cases(op);
  return set == TestSet::kCi ? ci_cases(op) : full_cases(op);
}

std::vector<Case> demo_cases() {
  std::vector<Case> cases = {
      dense_case(4, 1, 16, 576, 4096, DType::kBF16), dense_case(2, 2, 64, 576, 1024, DType::kBF16),
      dense_case(4, 1, 16, 512, 4096, DType::kFP16), dense_case(4, 1, 16, 576, 4096, DType::kE4M3)};
  for (const RecordChoice& choice : record_choices(Op::kSparseDecode)) {
    cases.push_back(record_case(Op::kSparseDecode, choice.d == 576 ? 4 : 16, 64, choice, 4096));
  }
  const CacheCase plain = cache(Record::kBf16, 0, 4096);
  for (const auto& [d, topk, tokens] :
       {std::tuple{512, 640, 32}, {512, 2048, 8}, {576, 640, 32}, {576, 2048, 8}}) {
    cases.push_back(attention_case(Op::kSparsePrefillFwd, 1, tokens, 64, d, plain));
    cases.back().main.width = topk;
  }
  for (const RecordChoice& choice : {RecordChoice{Record::kV4Fp8, Record::kV41MainFp4, 512},
                                     RecordChoice{Record::kBf16, std::nullopt, 512}}) {
    cases.push_back(record_case(Op::kFusedDecode, 16, 64, choice, 4096));
  }
  cases.push_back(record_case(Op::kFusedDecodePartials, 16, 64, kV41Pair, 4096));
  cases.back().num_splits = 4;
  for (const Op op : {Op::kCombinePartials, Op::kCombinePartialsFused}) cases.push_back(merge_case(op, 4));
  for (const Op op : {Op::kQuantizeKv, Op::kDequantizeKv}) {
    for (const RecordChoice& choice : record_choices(op)) add_moves(cases, op, choice, 1024, 1024);
  }
  return cases;
}

std::vector<Case> bench_cases() {
  std::vector<Case> cases;
  for (const auto& [heads, d, topk, tokens, rows] : {std::tuple{64, 512, 512, 512, 4096},
                                                     {64, 512, 512, 512, 65536},
                                                     {64, 512, 128, 512, 4096},
                                                     {16, 512, 512, 512, 4096},
                                                     {128, 512, 512, 256, 4096},
                                                     {64, 576, 2048, 64, 32768},
                                                     {16, 576, 2048, 64, 32768},
                                                     {128, 576, 2048, 32, 32768}}) {
    cases.push_back(
        attention_case(Op::kSparsePrefillFwd, 1, tokens, heads, d, cache(Record::kBf16, topk, rows)));
  }
  for (const int64_t topk : {512, 640}) {
    cases.push_back(attention_case(Op::kFusedPrefill, 1, 512, 64, 512, cache(Record::kBf16, topk, 4096)));
  }
  for (const Op op : {Op::kSparseDecode, Op::kFusedDecode}) {
    for (const int64_t heads : {64, 16, 128}) cases.push_back(record_case(op, 64, heads, kV41Pair, 16384));
    for (const int64_t rows : {4096, 131072}) cases.push_back(record_case(op, 64, 64, kV41Pair, rows));
    cases.push_back(record_case(op, 1, 64, kV41Pair, 16384));
    for (const RecordChoice& choice : record_choices(op)) {
      if (choice.main == kV41Pair.main && choice.extra == kV41Pair.extra) continue;
      cases.push_back(record_case(op, choice.d == 576 ? 16 : 64, 64, choice, 16384));
    }
  }
  for (const int64_t keys : {1024, 4096, 16384, 65536}) {
    cases.push_back(dense_case(1, 1, 16, 576, keys, DType::kBF16));
  }
  for (const DType type : {DType::kFP16, DType::kE4M3})
    cases.push_back(dense_case(1, 1, 16, 576, 16384, type));
  cases.push_back(dense_case(8, 1, 16, 576, 8192, DType::kBF16));
  cases.push_back(dense_case(1, 2, 128, 576, 4096, DType::kBF16));
  cases.push_back(dense_case(1, 1, 16, 512, 16384, DType::kBF16));
  for (const Op op : {Op::kCombinePartials, Op::kCombinePartialsFused}) cases.push_back(merge_case(op, 8));
  for (const Op op : {Op::kQuantizeKv, Op::kDequantizeKv, Op::kAppendKv}) {
    for (const RecordChoice& choice : record_choices(op)) add_moves(cases, op, choice, 4096, 8192);
  }
  return cases;
}

std::optional<Case> find_case(std::string_view wanted) {
  std::vector<Case> all = joined(demo_cases(), bench_cases());
  for (const Op op : all_ops()) all = joined(joined(std::move(all), smoke_cases(op)), full_cases(op));
  for (const Case& c : all) {
    if (name(c) == wanted) return c;
  }
  return std::nullopt;
}

}  // namespace tilewise::cases
