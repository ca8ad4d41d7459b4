// The oracle of merging partial results, and the test of partials by what they merge to.
#pragma once

#include "reference/attention.h"
#include "reference/bound.h"
#include "tilewise/ops/combine.h"

namespace tilewise::reference {

/// Merged rows [1, s_q, h_q], the sink applied to `out`; max_logits is left empty. kRounded has fp32 weights
/// and sums.
AttentionResult combine(const CombineCommon& args, Arithmetic arithmetic);

/// Compares what fused_decode_partials wrote: merged in double it must be the attention without a sink (the
/// two results of attention(args, ..)) within its bound, and a split with lse -inf must hold zeros; +inf is
/// no partial's lse.
Comparison compare_partials(const FusedDecodePartialsArgs& args, const AttentionResult& oracle,
                            const AttentionResult& rounded);

}  // namespace tilewise::reference
