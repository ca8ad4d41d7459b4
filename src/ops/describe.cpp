// Problems and forward plans as printable text.
#include <fmt/format.h>

#include "ops/forward.h"
#include "ops/rows.h"
#include "ops/sparse_backward.h"
#include "ops/varlen.h"

namespace tilewise {
namespace {

std::string describe(const char* name, const CacheShape& cache, bool dense) {
  const bool plain = cache.record == Record::kBf16;
  return fmt::format(", {} {} {}x{} {} {}{}", name,
                     plain ? to_string(cache.dtype) : record_name(cache.record), cache.num_blocks, cache.page,
                     dense ? "max_blocks" : "topk", cache.width, cache.has_length ? " with lengths" : "");
}

template <class Shape>
std::string describe_mask(const Shape& shape) {
  std::string text = shape.causal ? ", causal" : "";
  if (!(shape.window == Window{}))
    text += fmt::format(", window ({}, {})", shape.window.left, shape.window.right);
  return text;
}

std::string describe_epilogue(const ForwardShape& shape) {
  switch (shape.epilogue) {
    case Epilogue::kStore:
      return fmt::format(", out {}", to_string(shape.out_dtype));
    case Epilogue::kFp8:
      return fmt::format(", out float8_e4m3fn in {} groups", shape.n_groups);
    case Epilogue::kPartials:
      return fmt::format(", {} partials", shape.num_splits);
  }
  return "";
}

}  // namespace

std::string describe(const ForwardShape& shape) {
  std::string text = fmt::format("b {}, s_q {}, h_q {}, h_kv {}, d {}/{}, q {}", shape.batch, shape.s_q,
                                 shape.h_q, shape.h_kv, shape.d_qk, shape.d_v, to_string(shape.q_dtype));
  text += describe("keys", shape.main, shape.dense);
  if (shape.extra.present) text += describe("extra keys", shape.extra, shape.dense);
  text += fmt::format(", scale {:g}", shape.softmax_scale);
  text += describe_mask(shape);
  if (shape.has_sink) text += ", attn_sink";
  if (shape.has_sink_bias) text += fmt::format(", sink_bias {}", to_string(shape.sink_bias_dtype));
  if (shape.indexer_topk > 0) text += fmt::format(", indexer_topk {}", shape.indexer_topk);
  if (shape.fused) text += fmt::format(", rope of {} positions", shape.max_pos);
  if (shape.q_norm) text += fmt::format(", q norm with eps {:g}", shape.q_norm_eps);
  if (shape.batch_invariant) text += ", batch_invariant";
  if (shape.planned) text += ", planned";
  return text + describe_epilogue(shape);
}

std::string describe(const ForwardPlan& plan) {
  std::string text =
      fmt::format("{} tiles of {} rows x {} keys", plan.num_tiles, plan.tile_rows, plan.tile_keys);
  if (plan.wave_tiles > 0) {
    text += fmt::format(", up to {} segments a row, {} tiles at a time", plan.max_segments, plan.wave_tiles);
  } else if (plan.min_piece > 0 && plan.max_segments > 1) {
    text += fmt::format(", up to {} pieces a row of {} keys at least", plan.max_segments,
                        plan.min_piece * plan.tile_keys);
  }
  if (plan.items > 0) text += fmt::format(", at most {} pieces", plan.items);
  if (plan.scratch_bytes > 0) text += fmt::format(", {} B scratch a thread", plan.scratch_bytes);
  return text;
}

std::string describe(const VarlenShape& shape) {
  std::string text =
      fmt::format("{} sequences, q {} rows up to {}, k {} rows up to {}, h_q {}, h_kv {}, d {}/{} {}",
                  shape.batch, shape.total_q, shape.max_seqlen_q, shape.total_k, shape.max_seqlen_k,
                  shape.h_q, shape.h_kv, shape.d_qk, shape.d_v, to_string(shape.dtype));
  text += fmt::format(", scale {:g}", shape.softmax_scale) + describe_mask(shape);
  if (shape.has_sink_bias) text += fmt::format(", sink_bias {}", to_string(shape.sink_bias_dtype));
  if (shape.selected) {
    text += fmt::format(", {} of {} rows x {}, blocks {} x {}",
                        shape.selection_per_head ? "selections" : "a selection", shape.selection_rows,
                        shape.selection_width, shape.q_block, shape.kv_block);
  }
  return text;
}

std::string describe(const VarlenBackwardShape& shape) {
  return describe(static_cast<const VarlenShape&>(shape)) +
         (shape.deterministic ? ", deterministic" : ", atomics allowed");
}

std::string describe(const VarlenPlan& plan) {
  return fmt::format("tiles of {} rows x {} keys, {} B scratch a thread", plan.tile_rows, plan.tile_keys,
                     plan.scratch_bytes);
}

std::string describe(const SparseBackwardShape& shape) {
  std::string text = fmt::format("s_q {}, h_q {}, d {}/{}, keys {}, topk {}{}, scale {:g}", shape.s_q,
                                 shape.h_q, shape.d_qk, shape.d_v, shape.s_kv, shape.topk,
                                 shape.has_length ? " with lengths" : "", shape.softmax_scale);
  if (shape.has_sink_bias) text += fmt::format(", sink_bias {}", to_string(shape.sink_bias_dtype));
  if (shape.has_kl_target) text += ", kl_target";
  return text + (shape.deterministic ? ", deterministic" : ", atomics allowed");
}

std::string describe(const SparseBackwardPlan& plan) {
  return fmt::format("tiles of {} heads x {} keys, {} B scratch a thread", plan.tile_rows, plan.tile_keys,
                     plan.scratch_bytes);
}

std::string describe(const CombineShape& shape) {
  std::string text =
      fmt::format("{} partials {}, s_q {}, h_q {}, d_v {}, lse base {}", shape.num_partials,
                  to_string(shape.partial_dtype), shape.s_q, shape.h_q, shape.d_v, shape.base2 ? "2" : "e");
  if (shape.has_sink) text += ", attn_sink";
  text += fmt::format(", out {}", to_string(shape.out_dtype));
  if (shape.fp8) text += fmt::format(" in {} groups", shape.n_groups);
  return text;
}

std::string describe(const KvMoveShape& shape) {
  std::string text = fmt::format("{} rows of {}, {} {}x{}", shape.n, shape.d, record_name(shape.record),
                                 shape.num_blocks, shape.page);
  if (shape.move == KvMove::kAppend) text += fmt::format(", slots {}", to_string(shape.slot_dtype));
  return text;
}

}  // namespace tilewise
