// The checks that dense_prefill and block_sparse_prefill share.
#pragma once

#include <span>

#include "core/check.h"
#include "ops/forward_check.h"
#include "ops/varlen.h"
#include "tilewise/ops/block_sparse_prefill.h"

namespace tilewise {

/// The head sizes that an operator has.
struct HeadSizes {
  int64_t d_qk;
  int64_t d_v;
};

/// q, k, v, their sequences and their mask.
void check_varlen(Checker& check, const VarlenCommon& args, std::span<const HeadSizes> sizes,
                  VarlenShape* shape, VarlenTensors* tensors);
/// An absent selection is none.
void check_selection(Checker& check, const BlockSparseCommon& args, VarlenShape* shape,
                     VarlenTensors* tensors);
void check_varlen_outputs(Checker& check, const VarlenOutputs& args, VarlenForwardProblem* problem);
void check_varlen_gradients(Checker& check, const VarlenGradients& args, const TensorView& sink_bias,
                            VarlenBackwardProblem* problem);

/// d_sink: of sink_bias' type, given exactly when sink_bias is.
void check_d_sink(Checker& check, const TensorView& sink_bias, const TensorView& d_sink, int64_t h_q);

}  // namespace tilewise
