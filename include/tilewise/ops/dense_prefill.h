// dense_prefill: attention of whole sequences, laid end to end, to themselves (varlen MHA, GQA and MQA), with
// gradients.
#pragma once

#include <vector>

#include "tilewise/mask.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// What the operators on whole sequences share. Sequence i has the query rows [cu_seqlens_q[i],
/// cu_seqlens_q[i + 1]) and the key rows [cu_seqlens_k[i], cu_seqlens_k[i + 1]); values are clamped to the
/// tensors' rows, a decrease makes an empty sequence. Query head i uses KV head i / (h_q / h_kv).
struct VarlenCommon {
  TensorView q;              ///< bfloat16 or float16 [total_q, h_q, d_qk]; d_qk/d_v 192/128, 128/128 or 64/64
  TensorView k;              ///< the same type, [total_k, h_kv, d_qk]; h_q a multiple of h_kv
  TensorView v;              ///< the same type, [total_k, h_kv, d_v]
  TensorView cu_seqlens_q;   ///< int32 [b + 1]
  TensorView cu_seqlens_k;   ///< int32 [b + 1]
  int64_t max_seqlen_q = 0;  ///< an upper bound of a sequence's query rows; longer ones are cut there
  int64_t max_seqlen_k = 0;  ///< an upper bound of a sequence's key rows; longer ones are cut there
  float softmax_scale = 1.0f;
  bool causal = false;   ///< query i of s_q sees keys <= s_k - s_q + i
  Window window;         ///< bottom-right aligned; a key must pass causal and window both
  TensorView sink_bias;  ///< optional float32, float16 or bfloat16 [h_q]: an extra key without value
};

/// Rows outside all sequences are not written.
struct VarlenOutputs {
  TensorView out;  ///< of q's type, [total_q, h_q, d_v]
  TensorView lse;  ///< optional float32 [total_q, h_q], natural base
};

/// What a backward operator takes and gives on top. `lse` (sink_bias included) is believed: the probabilities
/// are exp(score - lse). Gradients of rows outside all sequences are 0. Every gradient's bits are the same in
/// every run.
struct VarlenGradients {
  TensorView d_out;           ///< of q's type, [total_q, h_q, d_v]
  TensorView out;             ///< of q's type, [total_q, h_q, d_v], of the forward operator
  TensorView lse;             ///< float32 [total_q, h_q], of the forward operator
  bool deterministic = true;  ///< false allows atomics; CPU kernels use none

  TensorView dq;      ///< of q's type, [total_q, h_q, d_qk]
  TensorView dk;      ///< of q's type, [total_k, h_kv, d_qk]
  TensorView dv;      ///< of q's type, [total_k, h_kv, d_v]
  TensorView d_sink;  ///< of sink_bias' type, [h_q], the part of these keys; given exactly when sink_bias is
};

struct DensePrefillFwdArgs : VarlenCommon, VarlenOutputs {};
struct DensePrefillBwdArgs : VarlenCommon, VarlenGradients {};

/// See dense_decode.h.
Plan plan(const DensePrefillFwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const DensePrefillFwdArgs& args, Workspace workspace, Stream stream = {});
void dense_prefill_fwd(const DensePrefillFwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const DensePrefillFwdArgs& args, const Device& device);

Plan plan(const DensePrefillBwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const DensePrefillBwdArgs& args, Workspace workspace, Stream stream = {});
void dense_prefill_bwd(const DensePrefillBwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const DensePrefillBwdArgs& args, const Device& device);

}  // namespace tilewise
