// Names of cases and kinds of operators.
#include "cases/case.h"

#include <fmt/format.h>

#include <array>

namespace tilewise::cases {
namespace {

constexpr std::array kOps = {
    Op::kDenseDecode, Op::kSparseDecode,        Op::kSparsePrefillFwd, Op::kFusedPrefill,
    Op::kFusedDecode, Op::kFusedDecodePartials, Op::kCombinePartials,  Op::kCombinePartialsFused,
    Op::kQuantizeKv,  Op::kDequantizeKv,        Op::kAppendKv,
};

const char* word(Holes holes) {
  switch (holes) {
    case Holes::kNone:
      return "";
    case Holes::kLeading:
      return " holes:leading";
    case Holes::kInterleaved:
      return " holes:interleaved";
    case Holes::kTrailing:
      return " holes:trailing";
    case Holes::kAll:
      return " holes:all";
    case Holes::kHuge:
      return " holes:huge";
  }
  return "";
}

const char* word(Lengths lengths) {
  switch (lengths) {
    case Lengths::kNone:
      return "full";
    case Lengths::kVaried:
      return "len";
    case Lengths::kOutside:
      return "len:outside";
  }
  return "";
}

std::string word(Sink sink, DType bias_type) {
  switch (sink) {
    case Sink::kNone:
      return "";
    case Sink::kFinite:
      return " sink";
    case Sink::kExtreme:
      return " sink:extreme";
    case Sink::kBias:
      return fmt::format(" sink_bias:{}", to_string(bias_type));
  }
  return "";
}

const char* word(FusedStore store) {
  switch (store) {
    case FusedStore::kFp8:
      return "";
    case FusedStore::kBf16:
      return " store:bf16";
    case FusedStore::kBoth:
      return " store:both";
  }
  return "";
}

// "a" or, with an extra cache, "a+b".
template <class Part>
std::string both(const Case& c, Part part) {
  std::string text = fmt::format("{}", part(c.main));
  if (c.extra) text += fmt::format("+{}", part(*c.extra));
  return text;
}

std::string caches(const Case& c) {
  std::string text;
  if (has_cache_records(c.op))
    text += " " + both(c, [](const CacheCase& k) { return record_name(k.record); });
  if (c.op == Op::kDenseDecode) text += fmt::format(" {}", to_string(c.dtype));
  text += fmt::format(" d{}", c.d_qk);
  if (is_dense(c.op)) {
    text += fmt::format(" keys{}", c.main.width);
  } else if (is_attention(c.op)) {
    text += " topk" + both(c, [](const CacheCase& k) { return k.width; });
  }
  if (is_dense(c.op) || has_cache_records(c.op))
    text += " page" + both(c, [](const CacheCase& k) { return k.page; });
  if (c.main.rows != 0 || (c.extra && c.extra->rows != 0)) {
    text += " rows" + both(c, [](const CacheCase& k) { return k.rows; });
  }
  if (c.main.lengths != Lengths::kNone || (c.extra && c.extra->lengths != Lengths::kNone)) {
    text += " " + both(c, [](const CacheCase& k) { return word(k.lengths); });
  }
  if (!c.main.named || (c.extra && !c.extra->named)) {
    text += " record:" + both(c, [](const CacheCase& k) { return k.named ? "named" : "inferred"; });
  }
  if (c.main.storage != DType::kUInt8 || (c.extra && c.extra->storage != DType::kUInt8)) {
    text += " as:" + both(c, [](const CacheCase& k) { return to_string(k.storage); });
  }
  return text;
}

std::string options(const Case& c) {
  std::string text;
  if (c.causal) text += " causal";
  if (c.batch_invariant) text += " batch_invariant";
  if (c.window != Window{}) text += fmt::format(" window{},{}", c.window.left, c.window.right);
  text += word(c.sink, c.sink_dtype);
  text += word(c.holes);
  if (c.duplicates) text += " duplicates";
  if (c.indexer_topk > 0) text += fmt::format(" indexer{}", c.indexer_topk);
  if (c.n_groups != 1) text += fmt::format(" groups{}", c.n_groups);
  if (c.q_norm_eps) text += fmt::format(" norm:{:g}", *c.q_norm_eps);
  text += word(c.store);
  if (c.num_splits != 1) text += fmt::format(" splits{}", c.num_splits);
  if (c.base2) text += " base2";
  if (!c.optional_outputs) text += " out_only";
  if (c.layout == Layout::kViews) text += " views";
  if (c.q_scale != 1.0f) text += fmt::format(" q*{:g}", c.q_scale);
  if (c.kv_scale != 1.0f) text += fmt::format(" kv*{:g}", c.kv_scale);
  if (c.logit_offset != 0.0f) text += fmt::format(" logits{:+g}", c.logit_offset);
  if (c.seed != 0) text += fmt::format(" seed{}", c.seed);
  return text;
}

}  // namespace

std::span<const Op> all_ops() { return kOps; }

const char* op_name(Op op) {
  switch (op) {
    case Op::kDenseDecode:
      return "dense_decode";
    case Op::kSparseDecode:
      return "sparse_decode";
    case Op::kSparsePrefillFwd:
      return "sparse_prefill_fwd";
    case Op::kFusedPrefill:
      return "fused_prefill";
    case Op::kFusedDecode:
      return "fused_decode";
    case Op::kFusedDecodePartials:
      return "fused_decode_partials";
    case Op::kCombinePartials:
      return "combine_partials";
    case Op::kCombinePartialsFused:
      return "combine_partials_fused";
    case Op::kQuantizeKv:
      return "quantize_kv";
    case Op::kDequantizeKv:
      return "dequantize_kv";
    case Op::kAppendKv:
      return "append_kv";
  }
  return "";
}

bool is_dense(Op op) { return op == Op::kDenseDecode; }

bool is_fused(Op op) {
  return op == Op::kFusedPrefill || op == Op::kFusedDecode || op == Op::kFusedDecodePartials;
}

bool is_combine(Op op) { return op == Op::kCombinePartials || op == Op::kCombinePartialsFused; }

bool is_kv_move(Op op) { return op == Op::kQuantizeKv || op == Op::kDequantizeKv || op == Op::kAppendKv; }

bool is_attention(Op op) { return !is_combine(op) && !is_kv_move(op); }

bool has_cache_records(Op op) {
  return is_kv_move(op) || op == Op::kSparseDecode || op == Op::kFusedDecode ||
         op == Op::kFusedDecodePartials;
}

std::string name(const Case& c) {
  std::string text = op_name(c.op);
  if (c.op == Op::kDenseDecode || c.op == Op::kSparseDecode) text += fmt::format(" b{}", c.batch);
  text += fmt::format(" {}{}", is_kv_move(c.op) ? "n" : "q", c.s_q);
  if (!is_kv_move(c.op)) text += fmt::format(" h{}", c.h_q);
  if (c.h_kv != 1) text += fmt::format("/{}", c.h_kv);
  if (is_combine(c.op)) {
    text += fmt::format(" d{} {}->{}", c.d_qk, to_string(c.dtype), to_string(c.out_dtype));
  } else {
    text += caches(c);
  }
  if (c.op == Op::kAppendKv) text += fmt::format(" slots:{}", to_string(c.dtype));
  return text + options(c);
}

}  // namespace tilewise::cases
