// Checks of dense_decode.
#include <fmt/format.h>

#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {
namespace {

void check_descale(Checker& check, const char* name, const TensorView& view, DType q_dtype) {
  const auto condition = [&] { return fmt::format("where q is {}", to_string(q_dtype)); };
  if (q_dtype == DType::kE4M3) {
    check.given(name, view, condition());
    check.input(name, view, {DType::kFP32}, {1});
  } else {
    check.left_out(name, view, view ? condition() : "");
  }
}

void check_keys(Checker& check, const DenseDecodeArgs& args, ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  CacheTensors& keys = problem->main;
  const TensorView& cache = args.k_cache;
  check.input("k_cache", cache, {shape.q_dtype}, {"num_blocks", "page", "h_kv", shape.d_qk});
  check.count("k_cache", "page", cache.size(1), 1);
  shape.h_kv = cache.size(2);
  if (shape.h_kv < 1 || shape.h_q % shape.h_kv != 0) {
    check.refuse("k_cache", fmt::format("of h_kv a divisor of h_q {}", shape.h_q),
                 fmt::format("h_kv {}", shape.h_kv));
  }
  keys.base = cache.data_as<const uint8_t>();
  keys.block_stride = step_bytes(cache, 0);
  keys.row_stride = step_bytes(cache, 1);
  keys.head_stride = step_bytes(cache, 2);

  check.input("block_table", args.block_table, {DType::kInt32}, {shape.batch, "max_blocks"});
  check.count("block_table", "max_blocks", args.block_table.size(1));
  keys.index = args.block_table.data_as<const int32_t>();
  keys.index_stride_b = step(args.block_table, 0);
  check.input("cache_seqlens", args.cache_seqlens, {DType::kInt32}, {shape.batch});
  keys.length = args.cache_seqlens.data_as<const int32_t>();
  keys.length_stride_b = step(args.cache_seqlens, 0);
  shape.main = {true, Record::kBf16, shape.q_dtype, cache.size(0), cache.size(1), args.block_table.size(1),
                true};
}

}  // namespace

void check_shapes(Checker& check, const DenseDecodeArgs& args, ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  shape.op = check.op();
  shape.dense = true;
  const TensorView& q = args.q;
  check.input("q", q, {DType::kBF16, DType::kFP16, DType::kE4M3}, {"b", "s_q", "h_q", Dim::either(576, 512)});
  check.count("q", "b", q.size(0));
  check.count("q", "s_q", q.size(1));
  check_heads(check, "q", q.size(2));
  check_d_v(check, args.d_v);
  check_softmax_scale(check, args.softmax_scale);
  shape.batch = q.size(0);
  shape.s_q = q.size(1);
  shape.h_q = q.size(2);
  shape.d_qk = q.size(3);
  shape.d_v = args.d_v;
  shape.q_dtype = q.dtype();
  shape.out_dtype = q.dtype() == DType::kE4M3 ? DType::kBF16 : q.dtype();
  shape.softmax_scale = args.softmax_scale;
  shape.batch_invariant = args.batch_invariant;
  shape.causal = args.causal;
  shape.window = check_window(check, args.window, args.causal);
  shape.has_sink = args.attn_sink.present();
  check_keys(check, args, problem);
}

ForwardProblem check(const DenseDecodeArgs& args, DeviceId device) {
  Checker check("dense_decode", device);
  ForwardProblem problem;
  check_shapes(check, args, &problem);
  ForwardShape& shape = problem.shape;
  const TensorView& q = args.q;
  check_sink(check, args.attn_sink, shape.h_q);
  check_descale(check, "descale_q", args.descale_q, shape.q_dtype);
  check_descale(check, "descale_k", args.descale_k, shape.q_dtype);
  check.output("out", args.out, {shape.out_dtype}, {shape.batch, shape.s_q, shape.h_q, shape.d_v});
  if (args.lse) check.output("lse", args.lse, {DType::kFP32}, {shape.batch, shape.h_q, shape.s_q});
  check_plan(check, args.plan, device, &problem);
  check.no_overlaps();

  problem.q = q.data();
  problem.q_stride_b = step(q, 0);
  problem.q_stride_s = step(q, 1);
  problem.q_stride_h = step(q, 2);
  problem.sink = args.attn_sink.data_as<const float>();
  problem.sink_stride = step(args.attn_sink, 0);
  problem.descale_q = args.descale_q.data_as<const float>();
  problem.descale_k = args.descale_k.data_as<const float>();
  problem.out = byte_rows<uint8_t>(args.out, 0, 1, 2);
  problem.lse = rows<float>(args.lse, 0, 2, 1);
  return problem;
}

}  // namespace tilewise
