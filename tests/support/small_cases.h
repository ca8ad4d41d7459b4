// Small calls of every operator for the tests of invariants: each record, pair of records, dtype, mask and
// kind of sink occurs; what a test wants beside that, it changes.
#pragma once

#include <utility>
#include <vector>

#include "cases/case.h"
#include "cases/space.h"
#include "tests/support/every_kernel.h"

namespace tilewise::testing {

inline std::vector<cases::Case> small_dense_cases() {
  cases::Case c;
  c.op = cases::Op::kDenseDecode;
  c.batch = 2;
  c.s_q = 3;
  c.h_q = 4;
  c.d_qk = 576;
  c.main = {.page = 16, .width = 150, .lengths = cases::Lengths::kVaried};
  std::vector<cases::Case> list;
  const auto add = [&](DType type, int64_t d, int64_t h_kv, bool causal, Window window, cases::Sink sink) {
    c.dtype = type;
    c.d_qk = d;
    c.h_kv = h_kv;
    c.causal = causal;
    c.window = window;
    c.sink = sink;
    list.push_back(c);
  };
  add(DType::kBF16, 576, 1, true, {}, cases::Sink::kNone);
  add(DType::kBF16, 512, 2, false, {33, 2}, cases::Sink::kFinite);
  add(DType::kFP16, 576, 4, true, {40, 0}, cases::Sink::kNone);
  add(DType::kE4M3, 576, 1, false, {}, cases::Sink::kExtreme);
  return list;
}

/// Every record and pair of records that the operator takes, with everything else alternating.
inline std::vector<cases::Case> small_decode_cases(cases::Op op) {
  std::vector<cases::Case> list;
  for (const cases::RecordChoice& choice : cases::record_choices(op)) {
    const bool odd = list.size() % 2 == 1;
    cases::Case c;
    c.op = op;
    c.batch = op == cases::Op::kSparseDecode ? 2 : 1;
    c.s_q = 3;
    c.h_q = odd ? 4 : 3;
    c.d_qk = choice.d;
    c.main = {.record = choice.main, .page = odd ? 16 : 5, .width = 70, .rows = 160};
    c.main.lengths = odd ? cases::Lengths::kVaried : cases::Lengths::kNone;
    if (choice.extra) {
      c.extra = cases::CacheCase{.record = *choice.extra, .page = odd ? 3 : 64, .width = 75, .rows = 190};
      c.extra->lengths = odd ? cases::Lengths::kNone : cases::Lengths::kVaried;
    }
    c.holes = odd ? cases::Holes::kHuge : cases::Holes::kInterleaved;
    if (op != cases::Op::kFusedDecodePartials) c.sink = odd ? cases::Sink::kFinite : cases::Sink::kNone;
    if (cases::is_fused(op)) {
      c.n_groups = odd ? 2 : 1;
      if (odd) c.q_norm_eps = 1e-6f;
    }
    if (op == cases::Op::kFusedDecode && odd) c.store = cases::FusedStore::kBoth;
    if (op == cases::Op::kFusedDecodePartials) c.num_splits = odd ? 2 : 3;
    list.push_back(c);
  }
  return list;
}

inline std::vector<cases::Case> small_prefill_cases(cases::Op op) {
  cases::Case c;
  c.op = op;
  c.s_q = 3;
  c.h_q = 4;
  c.d_qk = op == cases::Op::kFusedPrefill ? 512 : 576;
  c.main = {.width = 70, .rows = 200, .lengths = cases::Lengths::kVaried};
  c.holes = cases::Holes::kHuge;
  std::vector<cases::Case> list = {c};
  c.d_qk = 512;
  c.sink = cases::Sink::kFinite;
  c.main.lengths = cases::Lengths::kNone;
  if (op == cases::Op::kFusedPrefill) {
    c.n_groups = 2;
    c.q_norm_eps = 1e-6f;
    c.store = cases::FusedStore::kBoth;
  } else {
    c.indexer_topk = 20;
  }
  list.push_back(c);
  if (op == cases::Op::kSparsePrefillFwd) {
    c.d_qk = 576;
    c.sink = cases::Sink::kBias;
    c.sink_dtype = DType::kBF16;
    c.indexer_topk = 0;
    list.push_back(c);
  }
  return list;
}

inline std::vector<cases::Case> small_combine_cases(cases::Op op) {
  cases::Case c;
  c.op = op;
  c.s_q = 3;
  c.h_q = 4;
  c.num_splits = 3;
  c.holes = cases::Holes::kHuge;
  std::vector<cases::Case> list;
  for (const DType type : {DType::kFP32, DType::kBF16, DType::kFP16}) {
    c.dtype = type;
    c.out_dtype = type;
    c.base2 = type == DType::kFP32;
    c.sink = type == DType::kBF16 ? cases::Sink::kFinite : cases::Sink::kNone;
    c.n_groups = op == cases::Op::kCombinePartialsFused && type == DType::kFP32 ? 2 : 1;
    list.push_back(c);
  }
  return list;
}

inline std::vector<cases::Case> small_move_cases(cases::Op op) {
  std::vector<cases::Case> list;
  for (const cases::RecordChoice& choice : cases::record_choices(op)) {
    cases::Case c;
    c.op = op;
    c.s_q = 33;
    c.d_qk = choice.d;
    c.main = {.record = choice.main, .page = list.size() % 2 == 1 ? 16 : 5, .rows = 60};
    if (op == cases::Op::kAppendKv) {
      c.holes = cases::Holes::kHuge;
      c.duplicates = true;
      c.dtype = list.size() % 2 == 1 ? DType::kInt64 : DType::kInt32;
    }
    list.push_back(c);
  }
  return list;
}

/// Lists long enough to be cut into several pieces, which threads then share.
inline std::vector<cases::Case> long_cases(cases::Op op) {
  if (!cases::is_attention(op)) return {};
  cases::Case c = cases::is_dense(op) ? small_dense_cases()[1]
                  : op == cases::Op::kSparsePrefillFwd || op == cases::Op::kFusedPrefill
                      ? small_prefill_cases(op)[1]
                      : small_decode_cases(op)[1];
  c.batch = 1;
  c.s_q = 2;
  c.h_q = 2;
  c.main.width = 2300;
  c.main.rows = cases::is_dense(op) ? 0 : 2600;
  c.main.page = 64;
  c.main.lengths = cases::Lengths::kNone;
  c.window = {};
  c.causal = cases::is_dense(op);
  if (c.indexer_topk > 0) c.indexer_topk = 1100;
  if (c.extra) {
    c.extra->width = 300;
    c.extra->rows = 400;
  }
  return {c};
}

inline std::vector<cases::Case> small_cases(cases::Op op) {
  std::vector<cases::Case> list;
  switch (op) {
    case cases::Op::kDenseDecode:
      list = small_dense_cases();
      break;
    case cases::Op::kSparseDecode:
    case cases::Op::kFusedDecode:
    case cases::Op::kFusedDecodePartials:
      list = small_decode_cases(op);
      break;
    case cases::Op::kSparsePrefillFwd:
    case cases::Op::kFusedPrefill:
      list = small_prefill_cases(op);
      break;
    case cases::Op::kCombinePartials:
    case cases::Op::kCombinePartialsFused:
      list = small_combine_cases(op);
      break;
    case cases::Op::kQuantizeKv:
    case cases::Op::kDequantizeKv:
    case cases::Op::kAppendKv:
      list = small_move_cases(op);
      break;
  }
  if (smoke() && list.size() > 4) {
    std::vector<cases::Case> some;
    for (size_t i = 0; i < list.size(); i += 3) some.push_back(list[i]);
    return some;
  }
  return list;
}

/// For tests that compare a row's bits beside other rows: decode on a GPU cuts a row's keys by the row's own
/// length only where it is asked to.
inline std::vector<cases::Case> batch_invariant(std::vector<cases::Case> list) {
  for (cases::Case& c : list) {
    c.batch_invariant = c.op == cases::Op::kDenseDecode || c.op == cases::Op::kSparseDecode;
  }
  return list;
}

inline std::vector<cases::Case> with_layout(std::vector<cases::Case> list, cases::Layout layout) {
  for (cases::Case& c : list) c.layout = layout;
  return list;
}

}  // namespace tilewise::testing
