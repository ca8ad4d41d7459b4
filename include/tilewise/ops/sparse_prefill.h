// sparse_prefill: attention of prompt tokens over token lists in an unpaged bf16 KV tensor, with gradients.
#pragma once

#include <vector>

#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Arguments of sparse_prefill_fwd. attn_sink (inference: scales the output alone) and sink_bias (training:
/// an extra key without value, part of out and lse) exclude each other.
struct SparsePrefillFwdArgs {
  TensorView q;        ///< bfloat16 [s_q, h_q, d_qk], d_qk 576 or 512
  TensorView kv;       ///< bfloat16 [s_kv, 1, d_qk]; V is the first d_v columns
  TensorView indices;  ///< int32 [s_q, 1, topk]; anything out of [0, s_kv) is skipped
  float softmax_scale = 1.0f;
  int64_t d_v = 512;         ///< 512
  TensorView topk_length;    ///< optional int32 [s_q]; clamped to [0, topk]
  TensorView attn_sink;      ///< optional float32 [h_q]
  TensorView sink_bias;      ///< optional float32, float16 or bfloat16 [h_q]
  int64_t indexer_topk = 0;  ///< n > 0: lse_indexer covers the first n entries of the list; in [0, topk]

  TensorView out;          ///< bfloat16 [s_q, h_q, d_v]
  TensorView max_logits;   ///< optional float32 [s_q, h_q]
  TensorView lse;          ///< optional float32 [s_q, h_q], natural base
  TensorView lse_indexer;  ///< float32 [s_q, h_q]; given exactly when indexer_topk > 0
};

/// Arguments of sparse_prefill_bwd. `lse` (natural base, sink_bias included) is believed: the probabilities
/// are exp(score - lse). Gradients of rows that no list selects are 0. Every gradient's bits are the same in
/// every run.
struct SparsePrefillBwdArgs {
  TensorView d_out;    ///< bfloat16 [s_q, h_q, d_v]
  TensorView q;        ///< bfloat16 [s_q, h_q, d_qk], d_qk 576 or 512
  TensorView kv;       ///< bfloat16 [s_kv, 1, d_qk]; V is the first d_v columns
  TensorView out;      ///< bfloat16 [s_q, h_q, d_v], of sparse_prefill_fwd
  TensorView lse;      ///< float32 [s_q, h_q], of sparse_prefill_fwd
  TensorView indices;  ///< int32 [s_q, 1, topk]; anything out of [0, s_kv) is skipped
  float softmax_scale = 1.0f;
  int64_t d_v = 512;          ///< 512
  TensorView topk_length;     ///< optional int32 [s_q]; clamped to [0, topk]
  TensorView sink_bias;       ///< optional float32, float16 or bfloat16 [h_q]
  bool deterministic = true;  ///< CPU kernels always are

  TensorView dq;      ///< bfloat16 [s_q, h_q, d_qk]
  TensorView dkv;     ///< bfloat16 [s_kv, 1, d_qk]; the gradient of V is in the first d_v columns too
  TensorView d_sink;  ///< of sink_bias' type, [h_q], the part of these keys; given exactly when sink_bias is
  TensorView
      kl_target;  ///< optional float32 [s_q, topk]: an entry's probability summed over heads, 0 if invalid
};

/// See dense_decode.h.
Plan plan(const SparsePrefillFwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const SparsePrefillFwdArgs& args, Workspace workspace, Stream stream = {});
void sparse_prefill_fwd(const SparsePrefillFwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const SparsePrefillFwdArgs& args, const Device& device);

Plan plan(const SparsePrefillBwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const SparsePrefillBwdArgs& args, Workspace workspace, Stream stream = {});
void sparse_prefill_bwd(const SparsePrefillBwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const SparsePrefillBwdArgs& args, const Device& device);

}  // namespace tilewise
