// sparse_prefill_fwd: attention of prompt tokens over token lists in an unpaged bf16 KV tensor.
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

/// See dense_decode.h.
Plan plan(const SparsePrefillFwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const SparsePrefillFwdArgs& args, Workspace workspace, Stream stream = {});
void sparse_prefill_fwd(const SparsePrefillFwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const SparsePrefillFwdArgs& args, const Device& device);

}  // namespace tilewise
