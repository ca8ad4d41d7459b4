#include "bench/gpu/shapes.h"

#include <cstdint>
#include <optional>

namespace tilewise::bench {
namespace {

using cases::Case;
using cases::Op;

constexpr int64_t k1K = 1024;
constexpr int64_t kPrefillTokens = 4 * k1K;
constexpr int64_t kGroupHeads = 8;  // of the fused operators' output
// Cached tokens that a request of a sparse decode may select from.
constexpr int64_t kTokensOfRequest = 32 * k1K;

Case prefill(Op op, int64_t h_q, int64_t d_qk, int64_t topk, int64_t s_kv) {
  Case c;
  c.op = op;
  c.s_q = kPrefillTokens;
  c.h_q = h_q;
  c.d_qk = d_qk;
  c.main = {.width = topk, .rows = s_kv};
  if (op == Op::kFusedPrefill) c.n_groups = h_q / kGroupHeads;
  return c;
}

Case dense(int64_t batch, int64_t h_q, int64_t keys, int64_t s_q = 1) {
  Case c;
  c.op = Op::kDenseDecode;
  c.batch = batch;
  c.s_q = s_q;
  c.h_q = h_q;
  c.d_qk = 576;
  c.causal = s_q > 1;
  c.main = {.page = 64, .width = keys};
  return c;
}

Case decode(Op op, int64_t batch, int64_t s_q, int64_t h_q, Record main, int64_t width,
            std::optional<Record> extra = std::nullopt, int64_t extra_width = 0) {
  Case c;
  c.op = op;
  // The fused operators have no batch dimension.
  c.batch = op == Op::kSparseDecode ? batch : 1;
  c.s_q = op == Op::kSparseDecode ? s_q : batch * s_q;
  c.h_q = h_q;
  c.d_qk = main == Record::kV32Fp8 ? 576 : 512;
  c.main = {.record = main, .page = 64, .width = width, .rows = batch * kTokensOfRequest};
  if (extra) {
    c.extra = cases::CacheCase{
        .record = *extra, .page = 64, .width = extra_width, .rows = batch * kTokensOfRequest / 4};
  }
  if (op == Op::kFusedDecode) c.n_groups = h_q / kGroupHeads;
  return c;
}

Case combine(Op op, int64_t splits, int64_t tokens, int64_t h_q) {
  Case c;
  c.op = op;
  c.s_q = tokens;
  c.h_q = h_q;
  c.num_splits = splits;
  c.dtype = DType::kFP32;
  if (op == Op::kCombinePartialsFused) c.n_groups = h_q / kGroupHeads;
  return c;
}

Case append(Record record, int64_t rows) {
  Case c;
  c.op = Op::kAppendKv;
  c.s_q = rows;
  c.d_qk = record == Record::kV32Fp8 ? 576 : 512;
  c.dtype = DType::kInt64;
  c.main = {.record = record, .page = 64, .rows = 1024 * k1K};
  return c;
}

void add_prefills(std::vector<Case>& list) {
  const Op alone = Op::kSparsePrefillFwd;
  for (const int64_t s_kv : {8 * k1K, 32 * k1K, 128 * k1K})
    list.push_back(prefill(alone, 128, 576, 2048, s_kv));
  list.push_back(prefill(alone, 64, 576, 2048, 32 * k1K));
  list.push_back(prefill(alone, 16, 576, 2048, 32 * k1K));
  for (const int64_t topk : {640, 2048}) {
    for (const int64_t h_q : {64, 128}) {
      list.push_back(prefill(alone, h_q, 512, topk, 32 * k1K));
      list.push_back(prefill(Op::kFusedPrefill, h_q, 512, topk, 32 * k1K));
    }
  }
}

void add_dense_decodes(std::vector<Case>& list) {
  list.push_back(dense(128, 128, 4 * k1K));
  list.push_back(dense(128, 128, 4 * k1K, 2));
  list.push_back(dense(128, 128, 8 * k1K));
  list.push_back(dense(128, 16, 8 * k1K));
  list.push_back(dense(1, 128, 64 * k1K));
  list.push_back(dense(1, 16, 128 * k1K));
  list.push_back(dense(1, 128, 4 * k1K));
  list.push_back(dense(32, 16, 4 * k1K));
}

void add_sparse_decodes(std::vector<Case>& list) {
  const Op op = Op::kSparseDecode;
  list.push_back(decode(op, 128, 1, 128, Record::kV32Fp8, 2048));
  list.push_back(decode(op, 128, 2, 128, Record::kV32Fp8, 2048));
  list.push_back(decode(op, 128, 1, 64, Record::kV32Fp8, 2048));
  list.push_back(decode(op, 128, 1, 16, Record::kV32Fp8, 2048));
  for (const int64_t batch : {1, 8, 32}) list.push_back(decode(op, batch, 1, 64, Record::kV32Fp8, 2048));
  for (const auto& [main, extra] :
       {std::pair{Record::kV4Fp8, Record::kV4Fp8}, {Record::kV41Fp8, Record::kV41Fp4}}) {
    list.push_back(decode(op, 1, 1, 64, main, 128, extra, 512));
    for (const int64_t h_q : {64, 128}) {
      list.push_back(decode(op, 128, 1, h_q, main, 128, extra, 512));
      list.push_back(decode(Op::kFusedDecode, 128, 1, h_q, main, 128, extra, 512));
    }
  }
  for (const int64_t h_q : {64, 128}) {
    list.push_back(decode(op, 128, 1, h_q, Record::kV41Fp8, 2048));
    list.push_back(decode(Op::kFusedDecode, 128, 1, h_q, Record::kV41Fp8, 2048));
  }
}

}  // namespace

std::vector<Case> gpu_shapes() {
  std::vector<Case> list;
  add_prefills(list);
  add_dense_decodes(list);
  add_sparse_decodes(list);
  for (const Op op : {Op::kCombinePartials, Op::kCombinePartialsFused}) {
    list.push_back(combine(op, 8, 128, 128));
    list.push_back(combine(op, 64, 1, 128));
  }
  for (const Record record : {Record::kV32Fp8, Record::kV4Fp8, Record::kV41Fp8, Record::kV41Fp4}) {
    for (const int64_t rows : {int64_t{128}, kPrefillTokens}) list.push_back(append(record, rows));
  }
  return list;
}

bool timed_in_graph(Op op) { return op != Op::kSparsePrefillFwd && op != Op::kFusedPrefill; }

}  // namespace tilewise::bench
