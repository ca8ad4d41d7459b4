// Factors of every operator: sizes, records, layouts, masks, options, values.
#include "cases/space.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "tilewise/kv_format.h"

namespace tilewise::cases {
namespace {

// A factor that writes one of some values.
template <class T, class Set>
Factor values(std::string name, std::vector<T> list, Set set) {
  const auto levels = static_cast<int>(list.size());
  return {std::move(name), levels,
          [list = std::move(list), set](Case& c, int level) { set(c, list[static_cast<size_t>(level)]); }};
}

template <class Member, class T>
Factor member(std::string name, Member Case::* field, std::vector<T> list) {
  return values(std::move(name), std::move(list), [field](Case& c, const T& value) { c.*field = value; });
}

Factor heads(const Sizes& sizes) { return member("heads", &Case::h_q, sizes.heads); }
Factor tokens(const Sizes& sizes) { return member("tokens", &Case::s_q, sizes.tokens); }
Factor batches(const Sizes& sizes) { return member("batch", &Case::batch, sizes.batches); }

Factor widths(const Sizes& sizes) {
  return values("width", sizes.widths, [](Case& c, int64_t width) { c.main.width = width; });
}

Factor extra_widths() {
  return values("extra_width", std::vector<int64_t>{128, 1, 65, 512, 0}, [](Case& c, int64_t width) {
    if (c.extra) c.extra->width = width;
  });
}

Factor records(Op op) {
  return values("record", record_choices(op), [](Case& c, const RecordChoice& choice) {
    c.d_qk = choice.d;
    c.main.record = choice.main;
    if (choice.extra) c.extra = CacheCase{.record = *choice.extra};
  });
}

// Both caches' pages.
Factor pages() {
  const std::vector<std::pair<int64_t, int64_t>> list = {{64, 64}, {1, 16}, {16, 1}, {5, 64}, {256, 2}};
  return values("page", list, [](Case& c, const auto& page) {
    c.main.page = page.first;
    if (c.extra) c.extra->page = page.second;
  });
}

bool inferable(const Case& c, Record record) {
  return record == Record::kBf16 || infer_record(record_bytes(record, c.d_qk), c.d_qk) == record;
}

void infer_where_possible(const Case& c, CacheCase& cache, DType storage) {
  cache.named = !inferable(c, cache.record);
  if (cache.record != Record::kBf16) cache.storage = storage;
}

// How the caller describes the caches: named records as uint8, or inferred ones as another byte type.
Factor descriptions() {
  const std::vector<DType> list = {DType::kUInt8, DType::kInt8, DType::kE4M3};
  return values("description", list, [](Case& c, DType storage) {
    if (storage == DType::kUInt8) return;
    infer_where_possible(c, c.main, storage);
    if (c.extra) infer_where_possible(c, *c.extra, storage);
  });
}

Factor lengths() {
  const std::vector<Lengths> list = {Lengths::kNone, Lengths::kVaried, Lengths::kOutside};
  return values("lengths", list, [](Case& c, Lengths mode) { c.main.lengths = mode; });
}

Factor extra_lengths() {
  const std::vector<Lengths> list = {Lengths::kNone, Lengths::kVaried, Lengths::kOutside};
  return values("extra_lengths", list, [](Case& c, Lengths mode) {
    if (c.extra) c.extra->lengths = mode;
  });
}

Factor sinks() {
  return member("sink", &Case::sink, std::vector<Sink>{Sink::kNone, Sink::kFinite, Sink::kExtreme});
}

Factor sinks_and_biases() {
  const std::vector<std::pair<Sink, DType>> list = {
      {Sink::kNone, DType::kFP32}, {Sink::kFinite, DType::kFP32}, {Sink::kExtreme, DType::kFP32},
      {Sink::kBias, DType::kFP32}, {Sink::kBias, DType::kBF16},   {Sink::kBias, DType::kFP16}};
  return values("sink", list, [](Case& c, const auto& sink) {
    c.sink = sink.first;
    c.sink_dtype = sink.second;
  });
}

Factor holes() {
  return member("holes", &Case::holes,
                std::vector<Holes>{Holes::kNone, Holes::kLeading, Holes::kInterleaved, Holes::kTrailing,
                                   Holes::kAll, Holes::kHuge});
}

Factor batch_invariance() {
  return member("batch_invariant", &Case::batch_invariant, std::vector<bool>{false, true});
}
Factor duplicates() { return member("duplicates", &Case::duplicates, std::vector<bool>{false, true}); }
Factor layouts() {
  return member("layout", &Case::layout, std::vector<Layout>{Layout::kContiguous, Layout::kViews});
}
Factor optional_outputs() {
  return member("optional_outputs", &Case::optional_outputs, std::vector<bool>{true, false});
}

// Ordinary numbers, peaked and flat rows, small values, and logits far from 0.
Factor numbers() {
  struct Numbers {
    float q_scale, kv_scale, logit_offset;
  };
  const std::vector<Numbers> list = {{1, 1, 0},       {6, 1, 0},       {0.02f, 1, 0},  {1, 0.004f, 0},
                                     {1, 1, -150.0f}, {1, 1, -120.0f}, {1, 1, 200.0f}, {1, 1, -2.45e5f}};
  return values("numbers", list, [](Case& c, const Numbers& n) {
    c.q_scale = n.q_scale;
    c.kv_scale = n.kv_scale;
    // e4m3 could hold neither the large numbers nor, squeezed in, anything beside them.
    if (c.dtype != DType::kE4M3) c.logit_offset = n.logit_offset;
  });
}

// Rows in an unpaged KV tensor: some more than a list has, many more, fewer (so that lists repeat them).
Factor pools() {
  return {"pool", 3, [](Case& c, int level) {
            if (level == 1) c.main.rows = 4096;
            if (level == 2) c.main.rows = std::max<int64_t>(1, c.main.width / 2);
          }};
}

Factor groups() {
  return {"groups", 3, [](Case& c, int level) {
            if (level == 1) c.n_groups = c.h_q;
            if (level != 2) return;
            int64_t divisor = 2;
            while (divisor < c.h_q && c.h_q % divisor != 0) ++divisor;
            c.n_groups = std::min(divisor, c.h_q);
          }};
}

Factor norms() {
  return member("norm", &Case::q_norm_eps,
                std::vector<std::optional<float>>{std::nullopt, 1e-6f, 0.0f, 0.5f});
}

Factor stores() {
  return member("store", &Case::store,
                std::vector<FusedStore>{FusedStore::kFp8, FusedStore::kBoth, FusedStore::kBf16});
}

Factor splits(std::vector<int64_t> list) { return member("splits", &Case::num_splits, std::move(list)); }

Factor dense_types() {
  const std::vector<std::pair<DType, int64_t>> list = {{DType::kBF16, 576}, {DType::kBF16, 512},
                                                       {DType::kFP16, 576}, {DType::kFP16, 512},
                                                       {DType::kE4M3, 576}, {DType::kE4M3, 512}};
  return values("type", list, [](Case& c, const auto& type) {
    c.dtype = type.first;
    c.d_qk = type.second;
  });
}

Factor kv_heads() {
  return {"kv_heads", 3, [](Case& c, int level) {
            if (level == 1) c.h_kv = c.h_q;
            if (level != 2) return;
            int64_t divisor = 2;
            while (divisor < c.h_q && c.h_q % divisor != 0) ++divisor;
            c.h_kv = std::min(divisor, c.h_q);
          }};
}

Factor masks() {
  struct Mask {
    bool causal;
    Window window;
  };
  const std::vector<Mask> list = {{false, {}},      {true, {}},        {true, {0, -1}},
                                  {true, {40, 0}},  {false, {0, 0}},   {false, {33, -1}},
                                  {false, {-1, 5}}, {false, {100, 7}}, {true, {1000, -1}}};
  return values("mask", list, [](Case& c, const Mask& mask) {
    c.causal = mask.causal;
    c.window = mask.window;
  });
}

Factor partial_types() {
  return member("type", &Case::dtype, std::vector<DType>{DType::kFP32, DType::kBF16, DType::kFP16});
}

Factor out_types() {
  return member("out_type", &Case::out_dtype, std::vector<DType>{DType::kBF16, DType::kFP16, DType::kFP32});
}

Factor rows_moved() { return member("rows", &Case::s_q, std::vector<int64_t>{133, 1, 5, 64, 200}); }

Factor pools_of_slots() {
  return values("pool", std::vector<int64_t>{300, 64, 7}, [](Case& c, int64_t rows) { c.main.rows = rows; });
}

Factor slot_types() {
  return member("slots", &Case::dtype, std::vector<DType>{DType::kInt32, DType::kInt64});
}

Factor indexers() {
  return {"indexer", 4, [](Case& c, int level) {
            if (level == 1) c.indexer_topk = std::min<int64_t>(1, c.main.width);
            if (level == 2) c.indexer_topk = c.main.width / 2;
            if (level == 3) c.indexer_topk = c.main.width;
          }};
}

std::vector<Factor> factors_of(Op op, const Sizes& s) {
  switch (op) {
    case Op::kDenseDecode:
      return {heads(s),           widths(s),  tokens(s),         batches(s),
              dense_types(),      kv_heads(), masks(),           pages(),
              lengths(),          sinks(),    holes(),           layouts(),
              optional_outputs(), numbers(),  batch_invariance()};
    case Op::kSparseDecode:
      return {records(op),    heads(s),          widths(s), extra_widths(),     tokens(s),
              batches(s),     pages(),           lengths(), extra_lengths(),    sinks(),
              holes(),        duplicates(),      layouts(), optional_outputs(), numbers(),
              descriptions(), batch_invariance()};
    case Op::kSparsePrefillFwd:
      return {member("d", &Case::d_qk, std::vector<int64_t>{576, 512}),
              heads(s),
              widths(s),
              tokens(s),
              pools(),
              lengths(),
              sinks_and_biases(),
              holes(),
              duplicates(),
              indexers(),
              layouts(),
              optional_outputs(),
              numbers()};
    case Op::kFusedPrefill:
      return {heads(s), widths(s), tokens(s), pools(),   groups(),           norms(),     lengths(), sinks(),
              holes(),  stores(),  layouts(), numbers(), optional_outputs(), duplicates()};
    case Op::kFusedDecode:
      return {records(op),        heads(s),      widths(s), extra_widths(),
              tokens(s),          pages(),       lengths(), extra_lengths(),
              groups(),           norms(),       sinks(),   holes(),
              stores(),           duplicates(),  layouts(), numbers(),
              optional_outputs(), descriptions()};
    case Op::kFusedDecodePartials:
      return {records(op),     heads(s), widths(s), extra_widths(),       tokens(s),    pages(),   lengths(),
              extra_lengths(), norms(),  holes(),   splits({3, 1, 2, 8}), duplicates(), layouts(), numbers(),
              descriptions()};
    case Op::kCombinePartials:
      return {splits({2, 1, 3, 8, 33}),
              heads(s),
              tokens(s),
              partial_types(),
              out_types(),
              member("d", &Case::d_qk, std::vector<int64_t>{512, 64, 8, 200}),
              sinks(),
              holes(),
              layouts(),
              member("base2", &Case::base2, std::vector<bool>{false, true}),
              optional_outputs()};
    case Op::kCombinePartialsFused:
      return {splits({2, 1, 3, 8, 33}),
              heads(s),
              tokens(s),
              partial_types(),
              groups(),
              sinks(),
              holes(),
              layouts(),
              member("base2", &Case::base2, std::vector<bool>{false, true}),
              optional_outputs()};
    case Op::kQuantizeKv:
    case Op::kDequantizeKv:
      return {records(op), rows_moved(), pages(), layouts(),
              values("storage", std::vector<DType>{DType::kUInt8, DType::kInt8, DType::kE4M3},
                     [](Case& c, DType type) {
                       if (c.main.record != Record::kBf16) c.main.storage = type;
                     })};
    case Op::kAppendKv:
      return {records(op), rows_moved(), pages(),      pools_of_slots(), layouts(),
              holes(),     duplicates(), slot_types(), descriptions()};
  }
  return {};
}

}  // namespace

Sizes grid_sizes() {
  return {.heads = {1, 5, 8, 11, 12, 16, 20, 32, 40, 64, 65, 96, 127, 128},
          .widths = {1, 63, 64, 65, 133, 192, 512, 2045, 2048, 2176},
          .tokens = {1, 2, 3, 5, 7},
          .batches = {1, 2, 3},
          .most_pairs = 300'000};
}

Sizes small_sizes() {
  return {.heads = {1, 5, 16, 40},
          .widths = {1, 65, 133},
          .tokens = {1, 2},
          .batches = {1, 2},
          .most_pairs = 12'000};
}

std::vector<RecordChoice> record_choices(Op op) {
  std::vector<RecordChoice> choices;
  for (const Record main : all_records()) {
    for (const int64_t d : {int64_t{576}, int64_t{512}}) {
      if (record_bytes(main, d) == 0 || (is_fused(op) && d != 512)) continue;
      std::vector<RecordChoice> pairs;
      for (const Record extra : all_records()) {
        if (record_bytes(extra, d) > 0 && record_pair_allowed(main, extra)) pairs.push_back({main, extra, d});
      }
      // Attention takes a record alone where the record can be a main cache's at all.
      if (is_kv_move(op) || !pairs.empty()) choices.push_back({main, std::nullopt, d});
      if (!is_kv_move(op)) choices.insert(choices.end(), pairs.begin(), pairs.end());
    }
  }
  return choices;
}

Space space_of(Op op, const Sizes& sizes) {
  Space space;
  space.base.op = op;
  space.factors = factors_of(op, sizes);
  space.legal = [most = sizes.most_pairs](const Case& c) {
    const int64_t keys = c.main.width + (c.extra ? c.extra->width : 0);
    return c.batch * c.s_q * c.h_q * keys <= most;
  };
  return space;
}

}  // namespace tilewise::cases
