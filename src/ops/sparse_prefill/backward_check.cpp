// Checks of sparse_prefill_bwd.
#include "ops/checks.h"
#include "ops/forward_check.h"
#include "ops/varlen_check.h"

namespace tilewise {
namespace {

void check_keys(Checker& check, const SparsePrefillBwdArgs& args, SparseBackwardProblem* problem) {
  SparseBackwardShape& shape = problem->shape;
  check.input("kv", args.kv, {DType::kBF16}, {"s_kv", 1, shape.d_qk});
  check.count("kv", "s_kv", args.kv.size(0));
  check.input("indices", args.indices, {DType::kInt32}, {shape.s_q, 1, "topk"});
  check.count("indices", "topk", args.indices.size(2));
  shape.s_kv = args.kv.size(0);
  shape.topk = args.indices.size(2);
  problem->kv = args.kv.data_as<const uint16_t>();
  problem->kv_stride = step(args.kv, 0);
  problem->indices = args.indices.data_as<const int32_t>();
  problem->indices_stride = step(args.indices, 0);
  shape.has_length = args.topk_length.present();
  if (!args.topk_length) return;
  check.input("topk_length", args.topk_length, {DType::kInt32}, {shape.s_q});
  problem->length = args.topk_length.data_as<const int32_t>();
  problem->length_stride = step(args.topk_length, 0);
}

void check_gradients(Checker& check, const SparsePrefillBwdArgs& args, SparseBackwardProblem* problem) {
  SparseBackwardShape& shape = problem->shape;
  check.output("dq", args.dq, {DType::kBF16}, {shape.s_q, shape.h_q, shape.d_qk});
  check.output("dkv", args.dkv, {DType::kBF16}, {shape.s_kv, 1, shape.d_qk});
  check_d_sink(check, args.sink_bias, args.d_sink, shape.h_q);
  problem->dq = rows<uint16_t>(args.dq, -1, 0, 1);
  problem->dkv = args.dkv.data_as<uint16_t>();
  problem->dkv_stride = step(args.dkv, 0);
  problem->d_sink = args.d_sink.data();
  problem->d_sink_stride = step(args.d_sink, 0);
  shape.has_kl_target = args.kl_target.present();
  if (!args.kl_target) return;
  check.output("kl_target", args.kl_target, {DType::kFP32}, {shape.s_q, shape.topk});
  problem->kl_target = args.kl_target.data_as<float>();
  problem->kl_target_stride = step(args.kl_target, 0);
}

}  // namespace

SparseBackwardProblem check(const SparsePrefillBwdArgs& args, DeviceId device) {
  Checker check("sparse_prefill_bwd", device);
  SparseBackwardProblem problem;
  SparseBackwardShape& shape = problem.shape;
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
  shape.deterministic = args.deterministic;
  check_keys(check, args, &problem);
  check.input("d_out", args.d_out, {DType::kBF16}, {shape.s_q, shape.h_q, shape.d_v});
  check.input("out", args.out, {DType::kBF16}, {shape.s_q, shape.h_q, shape.d_v});
  check.input("lse", args.lse, {DType::kFP32}, {shape.s_q, shape.h_q});
  shape.has_sink_bias = args.sink_bias.present();
  if (args.sink_bias) {
    check_sink_bias(check, args.sink_bias, shape.h_q);
    shape.sink_bias_dtype = args.sink_bias.dtype();
  }
  check_gradients(check, args, &problem);
  check.no_overlaps();

  problem.q = rows<const uint16_t>(q, -1, 0, 1);
  problem.d_out = rows<const uint16_t>(args.d_out, -1, 0, 1);
  problem.out = rows<const uint16_t>(args.out, -1, 0, 1);
  problem.lse = rows<const float>(args.lse, -1, 0, 1);
  problem.sink_bias = args.sink_bias.data();
  problem.sink_bias_stride = step(args.sink_bias, 0);
  return problem;
}

}  // namespace tilewise
