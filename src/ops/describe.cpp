// Problems and forward plans as printable text.
#include <fmt/format.h>

#include "ops/forward.h"
#include "ops/rows.h"

namespace tilewise {
namespace {

std::string describe(const char* name, const CacheShape& cache, bool dense) {
  const bool plain = cache.record == Record::kBf16;
  return fmt::format(", {} {} {}x{} {} {}{}", name,
                     plain ? to_string(cache.dtype) : record_name(cache.record), cache.num_blocks, cache.page,
                     dense ? "max_blocks" : "topk", cache.width, cache.has_length ? " with lengths" : "");
}

std::string describe_mask(const ForwardShape& shape) {
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
  if (plan.scratch_bytes > 0) text += fmt::format(", {} B scratch a thread", plan.scratch_bytes);
  return text;
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
