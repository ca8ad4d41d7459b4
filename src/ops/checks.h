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

class Checker;

ForwardProblem check(const DenseDecodeArgs& args, DeviceId device);
ForwardProblem check(const SparseDecodeArgs& args, DeviceId device);
/// The part of the checks that says which keys a row sees.
void check_shapes(Checker& check, const DenseDecodeArgs& args, ForwardProblem* problem);
void check_shapes(Checker& check, const SparseDecodeArgs& args, ForwardProblem* problem);
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
