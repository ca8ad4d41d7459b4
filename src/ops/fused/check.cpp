// Checks of fused_prefill, fused_decode and fused_decode_partials.
#include <fmt/format.h>

#include <cmath>

#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {
namespace {

constexpr int64_t kHeadSize = 512;
constexpr int64_t kRopeSize = 64;

/// Everything that the three forms share but for the keys, which follow, and the outputs.
void check_common(Checker& check, const FusedCommon& args, ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  shape.op = check.op();
  shape.fused = true;
  const TensorView& q = args.q;
  check.input("q", q, {DType::kBF16}, {"s_q", "h_q", kHeadSize});
  if (q.numel() > 0 && q.size(1) > 1 && q.stride(1) != kHeadSize) {
    check.refuse("q", "contiguous within a token", fmt::format("stride(1) {}", q.stride(1)));
  }
  check.count("q", "s_q", q.size(0));
  check_heads(check, "q", q.size(1));
  shape.s_q = q.size(0);
  shape.h_q = q.size(1);
  shape.d_qk = shape.d_v = kHeadSize;
  shape.softmax_scale = args.softmax_scale;
  shape.n_groups = args.n_groups;

  check.input("token_positions", args.token_positions, {DType::kInt32}, {shape.s_q});
  check.input("cos_sin_cache", args.cos_sin_cache, {DType::kFP32}, {"max_pos", kRopeSize});
  shape.max_pos = args.cos_sin_cache.size(0);
  check.count("cos_sin_cache", "max_pos", shape.max_pos, shape.s_q > 0 ? 1 : 0);
  check_softmax_scale(check, args.softmax_scale);
  check_n_groups(check, args.n_groups, shape.h_q);
  if (args.q_norm_eps) {
    const float eps = *args.q_norm_eps;
    if (!(std::isfinite(eps) && eps >= 0)) {
      check.refuse("q_norm_eps", "finite and at least 0", fmt::format("{:g}", eps));
    }
    shape.q_norm = true;
    shape.q_norm_eps = eps;
  }
  check_sink(check, args.attn_sink, shape.h_q);

  problem->q = q.data();
  problem->q_stride_s = step(q, 0);
  problem->positions = args.token_positions.data_as<const int32_t>();
  problem->positions_stride = step(args.token_positions, 0);
  problem->cos_sin = args.cos_sin_cache.data_as<const float>();
  problem->cos_sin_stride = step(args.cos_sin_cache, 0);
}

void check_caches(Checker& check, const FusedDecodeCaches& args, const FusedCommon& common,
                  ForwardProblem* problem) {
  const SparseCache main{{"kv_cache", args.kv_cache, "record", args.record},
                         "indices",
                         args.indices,
                         "topk_length",
                         common.topk_length};
  const SparseCache extra{{"extra_cache", args.extra_cache, "extra_record", args.extra_record},
                          "extra_indices",
                          args.extra_indices,
                          "extra_topk_length",
                          args.extra_topk_length};
  check_sparse_caches(check, main, extra, problem);
}

void take_sink(const FusedCommon& args, ForwardProblem* problem) {
  problem->shape.has_sink = args.attn_sink.present();
  problem->sink = args.attn_sink.data_as<const float>();
  problem->sink_stride = step(args.attn_sink, 0);
}

/// The outputs of the forms that cast.
void check_outputs(Checker& check, const FusedOutputs& args, ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  shape.epilogue = Epilogue::kFp8;
  if (args.out_sf) check.given("out_fp8", args.out_fp8, "with out_sf");
  if (args.out_fp8) {
    check_fp8_outputs(check, args.out_fp8, args.out_sf, shape.s_q, shape.h_q, shape.n_groups, problem);
  } else if (!args.out_bf16) {
    check.given("out_fp8", args.out_fp8, "where out_bf16 is not");
  }
  if (args.out_bf16)
    check.output("out_bf16", args.out_bf16, {DType::kBF16}, {shape.s_q, shape.h_q, kHeadSize});
  if (args.max_logits) check.output("max_logits", args.max_logits, {DType::kFP32}, {shape.s_q, shape.h_q});
  if (args.lse) check.output("lse", args.lse, {DType::kFP32}, {shape.s_q, shape.h_q});
  check.no_overlaps();

  problem->out_bf16 = rows<uint16_t>(args.out_bf16, -1, 0, 1);
  problem->max_logits = rows<float>(args.max_logits, -1, 0, 1);
  problem->lse = rows<float>(args.lse, -1, 0, 1);
}

}  // namespace

ForwardProblem check(const FusedPrefillArgs& args, DeviceId device) {
  Checker check("fused_prefill", device);
  ForwardProblem problem;
  check_common(check, args, &problem);
  check_prefill_keys(check, args.kv, args.indices, args.topk_length, &problem);
  take_sink(args, &problem);
  check_outputs(check, args, &problem);
  return problem;
}

ForwardProblem check(const FusedDecodeArgs& args, DeviceId device) {
  Checker check("fused_decode", device);
  ForwardProblem problem;
  check_common(check, args, &problem);
  check_caches(check, args, args, &problem);
  problem.shape.batch_invariant = false;  // not promised
  take_sink(args, &problem);
  check.left_out("max_logits", args.max_logits);
  check_outputs(check, args, &problem);
  return problem;
}

ForwardProblem check(const FusedDecodePartialsArgs& args, DeviceId device) {
  Checker check("fused_decode_partials", device);
  ForwardProblem problem;
  ForwardShape& shape = problem.shape;
  check_common(check, args, &problem);
  check_caches(check, args, args, &problem);
  if (args.num_splits < 1 || args.num_splits > kMaxCount) {
    check.refuse("num_splits", fmt::format("1 to {}", kMaxCount), fmt::format("{}", args.num_splits));
  }
  shape.epilogue = Epilogue::kPartials;
  shape.out_dtype = DType::kFP32;
  shape.num_splits = args.num_splits;
  check.output("o_accum", args.o_accum, {DType::kFP32}, {args.num_splits, shape.s_q, shape.h_q, kHeadSize},
               Layout::kContiguous);
  check.output("lse_accum", args.lse_accum, {DType::kFP32}, {args.num_splits, shape.s_q, shape.h_q},
               Layout::kContiguous);
  check.no_overlaps();

  problem.out = byte_rows<uint8_t>(args.o_accum, -1, 1, 2);
  problem.split_stride_out = step_bytes(args.o_accum, 0);
  problem.lse = rows<float>(args.lse_accum, -1, 1, 2);
  problem.split_stride_lse = step(args.lse_accum, 0);
  return problem;
}

}  // namespace tilewise
