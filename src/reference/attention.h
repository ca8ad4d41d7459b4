// The oracle of the attention operators: plain loops over their argument structs, which must be valid.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/rounded.h"
#include "tilewise/ops/dense_decode.h"
#include "tilewise/ops/fused.h"
#include "tilewise/ops/sparse_decode.h"
#include "tilewise/ops/sparse_prefill.h"

namespace tilewise::reference {

/// Rows in the order [batch, s_q, h_q] (one batch entry where the operator has no batch dimension). `out` is
/// not rounded to the output dtype; of the fused operators it holds the values after the rotation back, in
/// the order of channels, before the cast.
struct AttentionResult {
  int64_t batch = 1;
  int64_t s_q = 0;
  int64_t h_q = 0;
  int64_t d_v = 0;
  std::vector<double> out;          ///< [batch, s_q, h_q, d_v]
  std::vector<double> lse;          ///< [batch, s_q, h_q]
  std::vector<double> max_logits;   ///< [batch, s_q, h_q]
  std::vector<double> lse_indexer;  ///< [batch, s_q, h_q]; empty unless indexer_topk > 0
  /// [batch, s_q, h_q], of attention in kDouble: what reference/bound.h calls S, taken before a rotation
  /// (which mixes two columns, so that S may be up to sqrt(2) times as large after it). Empty where it is not
  /// known.
  std::vector<double> sensitivity;

  int64_t rows() const { return batch * s_q * h_q; }
  int64_t row(int64_t b, int64_t s, int64_t h) const { return (b * s_q + s) * h_q + h; }
};

AttentionResult attention(const DenseDecodeArgs& args, Arithmetic arithmetic);
AttentionResult attention(const SparseDecodeArgs& args, Arithmetic arithmetic);
AttentionResult attention(const SparsePrefillFwdArgs& args, Arithmetic arithmetic);
AttentionResult attention(const FusedPrefillArgs& args, Arithmetic arithmetic);
AttentionResult attention(const FusedDecodeArgs& args, Arithmetic arithmetic);
/// What all partials merged must give: without the sink.
AttentionResult attention(const FusedDecodePartialsArgs& args, Arithmetic arithmetic);

}  // namespace tilewise::reference
