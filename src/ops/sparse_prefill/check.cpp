// Checks of sparse_prefill_fwd.
#include <fmt/format.h>

#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {
namespace {

void check_sinks(Checker& check, const SparsePrefillFwdArgs& args, int64_t h_q) {
  check_sink(check, args.attn_sink, h_q);
  if (!args.sink_bias) return;
  if (args.attn_sink) check.left_out("sink_bias", args.sink_bias, "where attn_sink is given");
  check_sink_bias(check, args.sink_bias, h_q);
}

void check_indexer(Checker& check, const SparsePrefillFwdArgs& args, const ForwardShape& shape) {
  const int64_t topk = shape.main.width;
  if (args.indexer_topk < 0 || args.indexer_topk > topk) {
    check.refuse("indexer_topk", fmt::format("0 to {} (topk)", topk), fmt::format("{}", args.indexer_topk));
  }
  if (args.indexer_topk == 0) {
    check.left_out("lse_indexer", args.lse_indexer, "where indexer_topk is 0");
  } else {
    check.given("lse_indexer", args.lse_indexer, "where indexer_topk is above 0");
    check.output("lse_indexer", args.lse_indexer, {DType::kFP32}, {shape.s_q, shape.h_q});
  }
}

}  // namespace

ForwardProblem check(const SparsePrefillFwdArgs& args, DeviceId device) {
  Checker check("sparse_prefill_fwd", device);
  ForwardProblem problem;
  ForwardShape& shape = problem.shape;
  shape.op = check.op();

  const TensorView& q = args.q;
  check.input("q", q, {DType::kBF16}, {"s_q", "h_q", Dim::either(576, 512)});
  check.count("q", "s_q", q.size(0));
  check_heads(check, "q", q.size(1));
  check_d_v(check, args.d_v);
  check_softmax_scale(check, args.softmax_scale);
  shape.s_q = q.size(0);
  shape.h_q = q.size(1);
  shape.d_qk = q.size(2);
  shape.d_v = args.d_v;
  shape.softmax_scale = args.softmax_scale;
  check_prefill_keys(check, args.kv, args.indices, args.topk_length, &problem);
  check_sinks(check, args, shape.h_q);
  check_indexer(check, args, shape);
  check.output("out", args.out, {DType::kBF16}, {shape.s_q, shape.h_q, shape.d_v});
  if (args.max_logits) check.output("max_logits", args.max_logits, {DType::kFP32}, {shape.s_q, shape.h_q});
  if (args.lse) check.output("lse", args.lse, {DType::kFP32}, {shape.s_q, shape.h_q});
  check.no_overlaps();

  shape.has_sink = args.attn_sink.present();
  shape.has_sink_bias = args.sink_bias.present();
  if (args.sink_bias) shape.sink_bias_dtype = args.sink_bias.dtype();
  shape.indexer_topk = args.indexer_topk;
  problem.q = q.data();
  problem.q_stride_s = step(q, 0);
  problem.q_stride_h = step(q, 1);
  problem.sink = args.attn_sink.data_as<const float>();
  problem.sink_stride = step(args.attn_sink, 0);
  problem.sink_bias = args.sink_bias.data();
  problem.sink_bias_stride = step(args.sink_bias, 0);
  problem.out = byte_rows<uint8_t>(args.out, -1, 0, 1);
  problem.max_logits = rows<float>(args.max_logits, -1, 0, 1);
  problem.lse = rows<float>(args.lse, -1, 0, 1);
  problem.lse_indexer = rows<float>(args.lse_indexer, -1, 0, 1);
  return problem;
}

}  // namespace tilewise
