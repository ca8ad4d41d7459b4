// From the caller's argument structs to canonical problems. Each function raises every error of its operator,
// InvalidArgument with the argument's name, before anything is written; all tensors must lie on `device`.
#pragma once

#include "ops/forward.h"
#include "ops/rows.h"
#include "ops/sparse_backward.h"
#include "ops/varlen.h"
#include "tilewise/ops/block_sparse_prefill.h"
#include "tilewise/ops/combine.h"
#include "tilewise/ops/dense_decode.h"
#include "tilewise/ops/dense_prefill.h"
#include "tilewise/ops/fused.h"
#include "tilewise/ops/kv_cache.h"
#include "tilewise/ops/sparse_decode.h"
#include "tilewise/ops/sparse_prefill.h"

namespace tilewise {

ForwardProblem check(const DenseDecodeArgs& args, DeviceId device);
ForwardProblem check(const SparseDecodeArgs& args, DeviceId device);
/// What a plan depends on, and the plan itself as an output.
ForwardProblem check_planning(const DenseDecodeArgs& args, DeviceId device);
ForwardProblem check_planning(const SparseDecodeArgs& args, DeviceId device);
/// The same without the plan.
ForwardShape plan_shape(const DenseDecodeArgs& args);
ForwardShape plan_shape(const SparseDecodeArgs& args);
ForwardProblem check(const SparsePrefillFwdArgs& args, DeviceId device);
SparseBackwardProblem check(const SparsePrefillBwdArgs& args, DeviceId device);
VarlenForwardProblem check(const DensePrefillFwdArgs& args, DeviceId device);
VarlenBackwardProblem check(const DensePrefillBwdArgs& args, DeviceId device);
VarlenForwardProblem check(const BlockSparsePrefillFwdArgs& args, DeviceId device);
VarlenBackwardProblem check(const BlockSparsePrefillBwdArgs& args, DeviceId device);
void check(const ExpandBlockSelectionArgs& args);
void check(const InvertBlockSelectionArgs& args);
ForwardProblem check(const FusedPrefillArgs& args, DeviceId device);
ForwardProblem check(const FusedDecodeArgs& args, DeviceId device);
ForwardProblem check(const FusedDecodePartialsArgs& args, DeviceId device);
CombineProblem check(const CombinePartialsArgs& args, DeviceId device);
CombineProblem check(const CombinePartialsFusedArgs& args, DeviceId device);
KvMoveProblem check(const QuantizeKvArgs& args, DeviceId device);
KvMoveProblem check(const DequantizeKvArgs& args, DeviceId device);
KvMoveProblem check(const AppendKvArgs& args, DeviceId device);
void check(const PermuteQBProjArgs& args);
void check(const PermuteWvProjArgs& args);

}  // namespace tilewise
