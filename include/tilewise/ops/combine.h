// combine_partials, combine_partials_fused: merge attention results computed over parts of the keys.
#pragma once

#include <vector>

#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Partial i weighs exp(lse_i - lse), lse = log sum exp(lse_i). A partial with lse -inf or +inf is empty and
/// ignored; where all are, the row is lonely: out 0, lse +inf.
struct CombineCommon {
  /// float32, bfloat16 or float16 [n, s_q, h_q, d_v]; d_v any positive multiple of 8, the fused form: 512
  TensorView out_partials;
  TensorView lse_partials;  ///< float32 [n, s_q, h_q]
  TensorView attn_sink;     ///< optional float32 [h_q], applied once at the end
  bool base2 = false;       ///< lse_partials are base 2; lse is natural in any case
};

struct CombinePartialsArgs : CombineCommon {
  TensorView out;  ///< bfloat16, float16 or float32 [s_q, h_q, d_v]
  TensorView lse;  ///< optional float32 [s_q, h_q]
};

/// Merges and casts: the layouts of fused.h's outputs.
struct CombinePartialsFusedArgs : CombineCommon {
  int64_t n_groups = 1;  ///< divides h_q
  TensorView out_fp8;    ///< float8_e4m3fn [s_q, n_groups, g * 512]
  TensorView out_sf;     ///< int32 [s_q, n_groups, g * 512 / 128]
  TensorView lse;        ///< optional float32 [s_q, h_q]
};

/// See dense_decode.h.
Plan plan(const CombinePartialsArgs& args, const Device& device, const PlanOptions& options = {});
Plan plan(const CombinePartialsFusedArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const CombinePartialsArgs& args, Workspace workspace, Stream stream = {});
void run(const Plan& plan, const CombinePartialsFusedArgs& args, Workspace workspace, Stream stream = {});
void combine_partials(const CombinePartialsArgs& args, const PlanOptions& options = {});
void combine_partials_fused(const CombinePartialsFusedArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const CombinePartialsArgs& args, const Device& device);
std::vector<KernelVerdict> explain(const CombinePartialsFusedArgs& args, const Device& device);

}  // namespace tilewise
