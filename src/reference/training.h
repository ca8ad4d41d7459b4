// The oracle of the training operators: outputs and gradients by plain loops over their argument structs,
// which must be valid.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.h"
#include "reference/gradient_bound.h"
#include "reference/rounded.h"
#include "tilewise/ops/block_sparse_prefill.h"
#include "tilewise/ops/dense_prefill.h"
#include "tilewise/ops/sparse_prefill.h"

namespace tilewise::reference {

/// Rows in the order [1, total_q, h_q]. The operators have no max_logits; the oracle has.
struct TrainingResult : AttentionResult {
  /// [total_q]: 0 where the operator writes nothing, as the row is outside all sequences. There out, lse and
  /// max_logits are NaN, so that an output that was filled with NaN compares equal.
  std::vector<uint8_t> written;
};

/// kRounded: fp32 scores and sums; P rounded to the type of q, the row's sum is that of the unrounded P.
TrainingResult training_forward(const DensePrefillFwdArgs& args, Arithmetic arithmetic);
TrainingResult training_forward(const BlockSparsePrefillFwdArgs& args, Arithmetic arithmetic);

/// Not rounded to the type of the outputs. What an operator does not have is empty.
struct Gradients {
  GradientTensor dq;         ///< [total_q, h_q, d_qk]
  GradientTensor dk;         ///< [total_k, h_kv, d_qk]
  GradientTensor dv;         ///< [total_k, h_kv, d_v]
  GradientTensor dkv;        ///< [s_kv, 1, d_qk]
  GradientTensor d_sink;     ///< [h_q], where there is a sink_bias
  GradientTensor kl_target;  ///< [s_q, topk], always
};

/// The gradients at the lse and the out that are given: P = exp(score - lse), dP = d_out . v,
/// delta = sum(d_out * out), dS = P * (dP - delta), d_sink = -sum(exp(sink - lse) * sum(P * dP)). kRounded:
/// all that in fp32; the P and dS that are factors of the sums are rounded to the type of q, before the
/// scale.
Gradients training_backward(const DensePrefillBwdArgs& args, Arithmetic arithmetic);
Gradients training_backward(const BlockSparsePrefillBwdArgs& args, Arithmetic arithmetic);
Gradients training_backward(const SparsePrefillBwdArgs& args, Arithmetic arithmetic);

}  // namespace tilewise::reference
