// fused_prefill, fused_decode, fused_decode_partials: Q norm + Q RoPE + sparse attention + inverse RoPE + FP8
// cast in one call, and the weight permutations that its layouts need.
#pragma once

#include <optional>
#include <vector>

#include "tilewise/kv_format.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// What the fused operators share. d_qk = d_v = 512; RoPE turns the last 64 columns.
struct FusedCommon {
  /// bfloat16 [s_q, h_q, 512]; a token's elements are contiguous, the token stride is free. Permuted: head h,
  /// channel c of a token sits at element (c / 16) * h_q * 16 + h * 16 + c % 16.
  TensorView q;
  TensorView token_positions;  ///< int32 [s_q]; clamped to [0, max_pos)
  /// float32 [max_pos, 64]: 32 cosines, then 32 sines; max_pos > 0 unless s_q is 0
  TensorView cos_sin_cache;
  float softmax_scale = 1.0f;
  int64_t n_groups = 1;               ///< divides h_q
  std::optional<float> q_norm_eps{};  ///< given: scores are scaled by 1 / RMS of each head's q
  TensorView topk_length;             ///< optional int32 [s_q]; clamped to [0, topk]
  TensorView attn_sink;               ///< optional float32 [h_q]
};

/// What the fused operators that cast return. out_fp8 and out_sf come together; out_bf16 may be asked for as
/// well or instead. g = h_q / n_groups heads a group.
struct FusedOutputs {
  /// float8_e4m3fn [s_q, n_groups, g * 512], contiguous, 32-byte aligned: head i of a group, channel c at
  /// (c / 32) * g * 32 + i * 32 + c % 32.
  TensorView out_fp8;
  /// int32 [s_q, n_groups, g * 512 / 128]: four ue8m0 bytes of consecutive 32-channel groups of that order.
  /// stride(0) == 1 unless s_q == 1, stride(2) >= s_q unless size(2) == 1, stride(1) >= size(2) * stride(2)
  /// unless n_groups == 1.
  TensorView out_sf;
  TensorView out_bf16;    ///< optional bfloat16 [s_q, h_q, 512], not permuted, after the inverse RoPE
  TensorView max_logits;  ///< optional float32 [s_q, h_q]; fused_prefill alone
  TensorView lse;         ///< optional float32 [s_q, h_q], natural base
};

struct FusedPrefillArgs : FusedCommon, FusedOutputs {
  TensorView kv;       ///< bfloat16 [s_kv, 1, 512]
  TensorView indices;  ///< int32 [s_q, 1, topk]
};

/// The paged caches of the decode forms: as in sparse_decode.h, without a batch dimension.
struct FusedDecodeCaches {
  TensorView kv_cache;  ///< [num_blocks, page, 1, bytes]
  TensorView indices;   ///< int32 [s_q, topk]
  Record record = Record::kAuto;
  TensorView extra_cache;
  TensorView extra_indices;      ///< int32 [s_q, extra_topk]
  TensorView extra_topk_length;  ///< optional int32 [s_q]
  Record extra_record = Record::kAuto;
};

/// fused_decode: splits a row's keys over threads by itself where that helps, and merges inside.
struct FusedDecodeArgs : FusedCommon, FusedDecodeCaches, FusedOutputs {};

/// fused_decode_partials: writes num_splits partial results that combine_partials_fused merges and casts.
/// Each is divided by its own sum and already rotated back; the sink is not applied; an empty split has o 0
/// and lse -inf.
struct FusedDecodePartialsArgs : FusedCommon, FusedDecodeCaches {
  int64_t num_splits = 1;  ///< >= 1
  TensorView o_accum;      ///< float32 [num_splits, s_q, h_q, 512], contiguous
  TensorView lse_accum;    ///< float32 [num_splits, s_q, h_q], base 2, contiguous
};

/// See dense_decode.h.
Plan plan(const FusedPrefillArgs& args, const Device& device, const PlanOptions& options = {});
Plan plan(const FusedDecodeArgs& args, const Device& device, const PlanOptions& options = {});
Plan plan(const FusedDecodePartialsArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const FusedPrefillArgs& args, Workspace workspace, Stream stream = {});
void run(const Plan& plan, const FusedDecodeArgs& args, Workspace workspace, Stream stream = {});
void run(const Plan& plan, const FusedDecodePartialsArgs& args, Workspace workspace, Stream stream = {});
void fused_prefill(const FusedPrefillArgs& args, const PlanOptions& options = {});
void fused_decode(const FusedDecodeArgs& args, const PlanOptions& options = {});
void fused_decode_partials(const FusedDecodePartialsArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const FusedPrefillArgs& args, const Device& device);
std::vector<KernelVerdict> explain(const FusedDecodeArgs& args, const Device& device);
std::vector<KernelVerdict> explain(const FusedDecodePartialsArgs& args, const Device& device);

/// permute_q_b_proj: reorders the rows of the Q up-projection so that it yields q as FusedCommon wants it:
/// row h * d + c moves to (c / 16) * h_q * 16 + h * 16 + c % 16; scales move with the rows.
struct PermuteQBProjArgs {
  TensorView weight;  ///< float8_e4m3fn [h_q * d_q, r], contiguous
  TensorView scales;  ///< int32 [h_q * d_q, r / gran / 4], column-major (stride(0) == 1); gran 32 or 128
  int64_t h_q = 0;
  int64_t d_q = 0;        ///< a multiple of 16
  TensorView weight_out;  ///< as weight
  TensorView scales_out;  ///< as scales, strides (1, >= rows)
};

/// permute_wv_proj: reorders the columns of the output projection to the order of out_fp8: inside a group,
/// column i * 512 + c moves to (c / 32) * group_size * 32 + i * 32 + c % 32; scales (one per 32 columns) move
/// with them.
struct PermuteWvProjArgs {
  TensorView weight;  ///< float8_e4m3fn [groups, n, group_size * d_o], contiguous
  TensorView scales;  ///< int32 [groups, n, group_size * d_o / 32 / 4], contiguous
  int64_t group_size = 0;
  int64_t d_o = 512;  ///< 512
  TensorView weight_out;
  TensorView scales_out;
};

/// Pure byte moves on the device where the weight lies, done once at load; no plan. Throw InvalidArgument.
void permute_q_b_proj(const PermuteQBProjArgs& args, Stream stream = {});
void permute_wv_proj(const PermuteWvProjArgs& args, Stream stream = {});

}  // namespace tilewise
