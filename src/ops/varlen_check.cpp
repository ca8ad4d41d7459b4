#include "ops/varlen_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace tilewise {
namespace {

constexpr int64_t kQBlockUnit = 64;

std::string sizes_text(std::span<const HeadSizes> sizes) {
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const char* joint = i == 0 ? "" : i + 1 < sizes.size() ? ", " : " or ";
    text += fmt::format("{}{}/{}", joint, sizes[i].d_qk, sizes[i].d_v);
  }
  return text;
}

void check_heads(Checker& check, const VarlenCommon& in, std::span<const HeadSizes> sizes,
                 VarlenShape* shape) {
  check.input("q", in.q, {DType::kBF16, DType::kFP16}, {"total_q", "h_q", "d_qk"});
  check.count("q", "total_q", in.q.size(0));
  check.count("q", "h_q", in.q.size(1), 1);
  shape->dtype = in.q.dtype();
  shape->total_q = in.q.size(0);
  shape->h_q = in.q.size(1);
  shape->d_qk = in.q.size(2);
  check.input("k", in.k, {shape->dtype}, {"total_k", "h_kv", shape->d_qk});
  check.count("k", "total_k", in.k.size(0));
  shape->total_k = in.k.size(0);
  shape->h_kv = in.k.size(1);
  if (shape->h_kv < 1 || shape->h_q % shape->h_kv != 0) {
    check.refuse("k", fmt::format("of h_kv a divisor of h_q {}", shape->h_q),
                 fmt::format("h_kv {}", shape->h_kv));
  }
  check.input("v", in.v, {shape->dtype}, {shape->total_k, shape->h_kv, "d_v"});
  shape->d_v = in.v.size(2);
  const auto same = [&](const HeadSizes& s) { return s.d_qk == shape->d_qk && s.d_v == shape->d_v; };
  if (std::none_of(sizes.begin(), sizes.end(), same)) {
    check.refuse("q and v", "of d_qk/d_v " + sizes_text(sizes),
                 fmt::format("{}/{}", shape->d_qk, shape->d_v));
  }
}

void check_length(const Checker& check, const char* name, int64_t length) {
  if (length >= 0 && length <= kMaxCount) return;
  check.refuse(name, fmt::format("0 to {}", kMaxCount), fmt::format("{}", length));
}

}  // namespace

void check_varlen(Checker& check, const VarlenCommon& in, std::span<const HeadSizes> sizes,
                  VarlenShape* shape, VarlenTensors* tensors) {
  shape->op = check.op();
  check_heads(check, in, sizes, shape);
  check.input("cu_seqlens_q", in.cu_seqlens_q, {DType::kInt32}, {"b + 1"});
  check.count("cu_seqlens_q", "b + 1", in.cu_seqlens_q.size(0), 1);
  check.input("cu_seqlens_k", in.cu_seqlens_k, {DType::kInt32}, {in.cu_seqlens_q.size(0)});
  check_length(check, "max_seqlen_q", in.max_seqlen_q);
  check_length(check, "max_seqlen_k", in.max_seqlen_k);
  check_softmax_scale(check, in.softmax_scale);
  shape->batch = in.cu_seqlens_q.size(0) - 1;
  shape->max_seqlen_q = std::min(in.max_seqlen_q, shape->total_q);
  shape->max_seqlen_k = std::min(in.max_seqlen_k, shape->total_k);
  shape->softmax_scale = in.softmax_scale;
  shape->causal = in.causal;
  // Beside a causal mask a window may reach ahead: a key must pass both.
  constexpr bool kAlone = false;
  shape->window = check_window(check, in.window, kAlone);
  shape->has_sink_bias = in.sink_bias.present();
  if (in.sink_bias) {
    check_sink_bias(check, in.sink_bias, shape->h_q);
    shape->sink_bias_dtype = in.sink_bias.dtype();
  }
  tensors->q = rows<const uint16_t>(in.q, -1, 0, 1);
  tensors->k = rows<const uint16_t>(in.k, -1, 0, 1);
  tensors->v = rows<const uint16_t>(in.v, -1, 0, 1);
  tensors->cu_q = in.cu_seqlens_q.data_as<const int32_t>();
  tensors->cu_q_stride = step(in.cu_seqlens_q, 0);
  tensors->cu_k = in.cu_seqlens_k.data_as<const int32_t>();
  tensors->cu_k_stride = step(in.cu_seqlens_k, 0);
  tensors->sink_bias = in.sink_bias.data();
  tensors->sink_bias_stride = step(in.sink_bias, 0);
}

void check_selection(Checker& check, const BlockSparseCommon& args, VarlenShape* shape,
                     VarlenTensors* tensors) {
  const TensorView& q2k = args.q2k;
  const int64_t q_block = args.q_block;
  const int64_t kv_block = args.kv_block;
  if (q_block < 1 || q_block % kQBlockUnit != 0 || q_block > kMaxCount) {
    check.refuse("q_block", fmt::format("a positive multiple of {}", kQBlockUnit),
                 fmt::format("{}", q_block));
  }
  if (kv_block != 64 && kv_block != 128) check.refuse("kv_block", "64 or 128", fmt::format("{}", kv_block));
  if (!q2k) return;
  const bool per_head = q2k.rank() != 2;
  if (per_head) {
    check.input("q2k", q2k, {DType::kInt32}, {shape->h_q, "rows", "n"});
  } else {
    check.input("q2k", q2k, {DType::kInt32}, {"rows", "n"});
  }
  const int rows_dim = per_head ? 1 : 0;
  check.count("q2k", "rows", q2k.size(rows_dim));
  check.count("q2k", "n", q2k.size(rows_dim + 1));
  shape->selected = true;
  shape->selection_per_head = per_head;
  shape->selection_rows = q2k.size(rows_dim);
  shape->selection_width = q2k.size(rows_dim + 1);
  shape->q_block = q_block;
  shape->kv_block = kv_block;
  tensors->q2k = q2k.data_as<const int32_t>();
  tensors->q2k_stride_h = per_head ? step(q2k, 0) : 0;
  tensors->q2k_stride_row = step(q2k, rows_dim);
}

void check_varlen_outputs(Checker& check, const VarlenOutputs& args, VarlenForwardProblem* problem) {
  const VarlenShape& shape = problem->shape;
  const TensorView& out = args.out;
  const TensorView& lse = args.lse;
  check.output("out", out, {shape.dtype}, {shape.total_q, shape.h_q, shape.d_v});
  if (lse) check.output("lse", lse, {DType::kFP32}, {shape.total_q, shape.h_q}, Layout::kOwn);
  problem->out = rows<uint16_t>(out, -1, 0, 1);
  problem->lse = rows<float>(lse, -1, 0, 1);
}

void check_d_sink(Checker& check, const TensorView& sink_bias, const TensorView& d_sink, int64_t h_q) {
  if (!sink_bias) {
    check.left_out("d_sink", d_sink, "without sink_bias");
    return;
  }
  check.given("d_sink", d_sink, "with sink_bias");
  check.output("d_sink", d_sink, {sink_bias.dtype()}, {h_q});
}

void check_varlen_gradients(Checker& check, const VarlenGradients& g, const TensorView& sink_bias,
                            VarlenBackwardProblem* problem) {
  const VarlenShape& shape = problem->shape;
  check.input("d_out", g.d_out, {shape.dtype}, {shape.total_q, shape.h_q, shape.d_v});
  check.input("out", g.out, {shape.dtype}, {shape.total_q, shape.h_q, shape.d_v});
  check.input("lse", g.lse, {DType::kFP32}, {shape.total_q, shape.h_q}, Layout::kOwn);
  check.output("dq", g.dq, {shape.dtype}, {shape.total_q, shape.h_q, shape.d_qk});
  check.output("dk", g.dk, {shape.dtype}, {shape.total_k, shape.h_kv, shape.d_qk});
  check.output("dv", g.dv, {shape.dtype}, {shape.total_k, shape.h_kv, shape.d_v});
  check_d_sink(check, sink_bias, g.d_sink, shape.h_q);
  problem->d_out = rows<const uint16_t>(g.d_out, -1, 0, 1);
  problem->out = rows<const uint16_t>(g.out, -1, 0, 1);
  problem->lse = rows<const float>(g.lse, -1, 0, 1);
  problem->dq = rows<uint16_t>(g.dq, -1, 0, 1);
  problem->dk = rows<uint16_t>(g.dk, -1, 0, 1);
  problem->dv = rows<uint16_t>(g.dv, -1, 0, 1);
  problem->d_sink = g.d_sink.data();
  problem->d_sink_stride = step(g.d_sink, 0);
}

}  // namespace tilewise
