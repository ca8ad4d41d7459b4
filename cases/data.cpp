// CaseData: look-up of tensors by argument name, and the argument structs made from them.
#include "cases/data.h"

#include <cstring>
#include <stdexcept>

#include "cases/random.h"

namespace tilewise::cases {
namespace {

TensorView rebased(const Operand& from, const Buffer& memory) {
  return {memory.data(), from.view.dtype(), from.view.shape(), from.view.strides()};
}

Record named(const CacheCase& cache) { return cache.named ? cache.record : Record::kAuto; }

float scale_of(const Case& c) { return 1.0f / std::sqrt(static_cast<float>(c.d_qk)); }

void bind_common(const CaseData& data, FusedCommon& a) {
  const Case& c = data.what();
  a.q = data.view("q");
  a.token_positions = data.view("token_positions");
  a.cos_sin_cache = data.view("cos_sin_cache");
  a.softmax_scale = scale_of(c);
  a.n_groups = c.n_groups;
  a.q_norm_eps = c.q_norm_eps;
  a.topk_length = data.view("topk_length");
  a.attn_sink = data.view("attn_sink");
}

// Of sparse_decode and the fused decodes alike.
template <class T>
void bind_caches(const CaseData& data, T& a) {
  const Case& c = data.what();
  a.kv_cache = data.view("kv_cache");
  a.indices = data.view("indices");
  a.record = named(c.main);
  a.extra_cache = data.view("extra_cache");
  a.extra_indices = data.view("extra_indices");
  a.extra_topk_length = data.view("extra_topk_length");
  a.extra_record = c.extra ? named(*c.extra) : Record::kAuto;
}

void bind_outputs(const CaseData& data, FusedOutputs& a) {
  a.out_fp8 = data.view("out_fp8");
  a.out_sf = data.view("out_sf");
  a.out_bf16 = data.view("out_bf16");
  a.max_logits = data.view("max_logits");
  a.lse = data.view("lse");
}

DenseDecodeArgs bind_dense_decode(const CaseData& data) {
  const Case& c = data.what();
  DenseDecodeArgs a;
  a.q = data.view("q");
  a.k_cache = data.view("k_cache");
  a.block_table = data.view("block_table");
  a.cache_seqlens = data.view("cache_seqlens");
  a.softmax_scale = scale_of(c);
  a.causal = c.causal;
  a.window = c.window;
  a.batch_invariant = c.batch_invariant;
  a.attn_sink = data.view("attn_sink");
  a.descale_q = data.view("descale_q");
  a.descale_k = data.view("descale_k");
  a.out = data.view("out");
  a.lse = data.view("lse");
  return a;
}

SparseDecodeArgs bind_sparse_decode(const CaseData& data) {
  SparseDecodeArgs a;
  bind_caches(data, a);
  a.q = data.view("q");
  a.softmax_scale = scale_of(data.what());
  a.topk_length = data.view("topk_length");
  a.attn_sink = data.view("attn_sink");
  a.batch_invariant = data.what().batch_invariant;
  a.out = data.view("out");
  a.lse = data.view("lse");
  return a;
}

SparsePrefillFwdArgs bind_sparse_prefill(const CaseData& data) {
  SparsePrefillFwdArgs a;
  a.q = data.view("q");
  a.kv = data.view("kv");
  a.indices = data.view("indices");
  a.softmax_scale = scale_of(data.what());
  a.topk_length = data.view("topk_length");
  a.attn_sink = data.view("attn_sink");
  a.sink_bias = data.view("sink_bias");
  a.indexer_topk = data.what().indexer_topk;
  a.out = data.view("out");
  a.max_logits = data.view("max_logits");
  a.lse = data.view("lse");
  a.lse_indexer = data.view("lse_indexer");
  return a;
}

FusedPrefillArgs bind_fused_prefill(const CaseData& data) {
  FusedPrefillArgs a;
  bind_common(data, a);
  bind_outputs(data, a);
  a.kv = data.view("kv");
  a.indices = data.view("indices");
  return a;
}

FusedDecodeArgs bind_fused_decode(const CaseData& data) {
  FusedDecodeArgs a;
  bind_common(data, a);
  bind_caches(data, a);
  bind_outputs(data, a);
  return a;
}

FusedDecodePartialsArgs bind_fused_partials(const CaseData& data) {
  FusedDecodePartialsArgs a;
  bind_common(data, a);
  bind_caches(data, a);
  a.num_splits = data.what().num_splits;
  a.o_accum = data.view("o_accum");
  a.lse_accum = data.view("lse_accum");
  return a;
}

void bind_partials(const CaseData& data, CombineCommon& a) {
  a.out_partials = data.view("out_partials");
  a.lse_partials = data.view("lse_partials");
  a.attn_sink = data.view("attn_sink");
  a.base2 = data.what().base2;
}

CombinePartialsArgs bind_combine(const CaseData& data) {
  CombinePartialsArgs a;
  bind_partials(data, a);
  a.out = data.view("out");
  a.lse = data.view("lse");
  return a;
}

CombinePartialsFusedArgs bind_combine_fused(const CaseData& data) {
  CombinePartialsFusedArgs a;
  bind_partials(data, a);
  a.n_groups = data.what().n_groups;
  a.out_fp8 = data.view("out_fp8");
  a.out_sf = data.view("out_sf");
  a.lse = data.view("lse");
  return a;
}

uint64_t add_to_hash(uint64_t hash, const uint8_t* p, int64_t bytes) {
  int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, 8);
    hash = mix_bits(hash ^ word);
  }
  for (; i < bytes; ++i) hash = mix_bits(hash ^ p[i]);
  return hash;
}

}  // namespace

CaseData::CaseData(const CaseData& other) : what_(other.what_), operands_(other.operands_) {
  for (Operand& o : operands_) o.view = rebased(o, o.memory);
}

CaseData& CaseData::operator=(const CaseData& other) {
  if (this != &other) *this = CaseData(other);
  return *this;
}

Args CaseData::args() const {
  switch (what_.op) {
    case Op::kDenseDecode:
      return bind_dense_decode(*this);
    case Op::kSparseDecode:
      return bind_sparse_decode(*this);
    case Op::kSparsePrefillFwd:
      return bind_sparse_prefill(*this);
    case Op::kFusedPrefill:
      return bind_fused_prefill(*this);
    case Op::kFusedDecode:
      return bind_fused_decode(*this);
    case Op::kFusedDecodePartials:
      return bind_fused_partials(*this);
    case Op::kCombinePartials:
      return bind_combine(*this);
    case Op::kCombinePartialsFused:
      return bind_combine_fused(*this);
    case Op::kQuantizeKv:
      return QuantizeKvArgs{view("x"), what_.main.record, view("pages")};
    case Op::kDequantizeKv:
      return DequantizeKvArgs{view("pages"), what_.main.record, view("x")};
    case Op::kAppendKv:
      return AppendKvArgs{view("kv"), view("kv_cache"), view("slots"), named(what_.main)};
  }
  throw std::logic_error("a case without an operator");
}

bool CaseData::has(std::string_view name) const { return view(name).present(); }

Operand& CaseData::operand(std::string_view name) {
  for (Operand& o : operands_) {
    if (o.name == name) return o;
  }
  throw std::out_of_range("no tensor named " + std::string(name) + " in " + cases::name(what_));
}

TensorView CaseData::view(std::string_view name) const {
  for (const Operand& o : operands_) {
    if (o.name == name) return o.view;
  }
  return {};
}

void CaseData::reset_outputs() {
  for (Operand& o : operands_) {
    if (o.role == Role::kInput) continue;
    o.memory.whole([&](uint8_t* p) { std::memcpy(p, o.initial.data(), o.initial.size()); });
  }
}

std::string CaseData::disturbed_output() const {
  for (const Operand& o : operands_) {
    if (o.role != Role::kInput && !surroundings_hold(o)) return o.name;
  }
  return {};
}

std::vector<std::vector<uint8_t>> CaseData::output_bits() const {
  std::vector<std::vector<uint8_t>> bits;
  for (const Operand& o : operands_) {
    if (o.role != Role::kInput) bits.push_back(contents(o.view));
  }
  return bits;
}

uint64_t CaseData::inputs_fingerprint() const {
  uint64_t hash = 0;
  for (const Operand& o : operands_) {
    if (o.role != Role::kInput) continue;
    o.memory.whole([&](uint8_t* p) { hash = add_to_hash(hash, p, o.memory.whole_bytes()); });
  }
  return hash;
}

}  // namespace tilewise::cases
