// Checks of sparse_decode.
#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {

void check_shapes(Checker& check, const SparseDecodeArgs& args, ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  shape.op = check.op();
  const TensorView& q = args.q;
  check.input("q", q, {DType::kBF16}, {"b", "s_q", "h_q", Dim::either(576, 512)});
  check.count("q", "b", q.size(0));
  check.count("q", "s_q", q.size(1));
  check_heads(check, "q", q.size(2));
  check_softmax_scale(check, args.softmax_scale);
  shape.batch = q.size(0);
  shape.s_q = q.size(1);
  shape.h_q = q.size(2);
  shape.d_qk = q.size(3);
  shape.d_v = 512;
  shape.softmax_scale = args.softmax_scale;
  shape.batch_invariant = args.batch_invariant;
  shape.has_sink = args.attn_sink.present();
  const SparseCache main{{"kv_cache", args.kv_cache, "record", args.record},
                         "indices",
                         args.indices,
                         "topk_length",
                         args.topk_length};
  const SparseCache extra{{"extra_cache", args.extra_cache, "extra_record", args.extra_record},
                          "extra_indices",
                          args.extra_indices,
                          "extra_topk_length",
                          args.extra_topk_length};
  check_sparse_caches(check, main, extra, problem);
}

ForwardProblem check(const SparseDecodeArgs& args, DeviceId device) {
  Checker check("sparse_decode", device);
  ForwardProblem problem;
  check_shapes(check, args, &problem);
  ForwardShape& shape = problem.shape;
  const TensorView& q = args.q;
  check_sink(check, args.attn_sink, shape.h_q);
  check.output("out", args.out, {DType::kBF16}, {shape.batch, shape.s_q, shape.h_q, shape.d_v});
  if (args.lse) check.output("lse", args.lse, {DType::kFP32}, {shape.batch, shape.h_q, shape.s_q});
  check_plan(check, args.plan, device, &problem);
  check.no_overlaps();

  problem.q = q.data();
  problem.q_stride_b = step(q, 0);
  problem.q_stride_s = step(q, 1);
  problem.q_stride_h = step(q, 2);
  problem.sink = args.attn_sink.data_as<const float>();
  problem.sink_stride = step(args.attn_sink, 0);
  problem.out = byte_rows<uint8_t>(args.out, 0, 1, 2);
  problem.lse = rows<float>(args.lse, 0, 2, 1);
  return problem;
}

}  // namespace tilewise
