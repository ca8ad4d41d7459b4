// What happens to single rows of Q before the scores and of O after them.
#pragma once

#include <cstdint>

#include "core/numeric.h"
#include "cpu/targets.h"
#include "ops/forward.h"
#include "tilewise/tensor.h"

namespace tilewise::cpu {

inline constexpr int64_t kCastGroups = kFusedDim / kCastGroup;

/// Sizes n are multiples of 8, pointers to floats 64-byte aligned unless they say otherwise.
struct RowOps {
  /// bf16, fp16, fp32 or e4m3 elements (any alignment) to fp32, exactly.
  void (*widen)(const void* from, DType type, int64_t n, float* to);
  /// fp32 to bf16, fp16 (nearest even) or fp32; `to` has any alignment.
  void (*narrow)(const float* from, int64_t n, DType type, void* to);
  /// One head of a token in the fused operators' order: element c at
  /// (c / 16) * h_q * 16 + head * 16 + c % 16.
  void (*unpermute)(const BF16* token, int64_t h_q, int64_t head, float* to);
  /// n is a multiple of 16.
  float (*sum_of_squares)(const float* x, int64_t n);
  /// Interleaved pairs of x [64] turned by cos_sin [32 + 32] (any alignment), or back by it.
  void (*rotate)(float* x, const float* cos_sin, bool back);
  void (*round_to_bf16)(float* x, int64_t n);
  void (*multiply)(float* x, int64_t n, float factor);
  /// a = a * weight_a + b * weight_b
  void (*merge)(float* a, float weight_a, const float* b, float weight_b, int64_t n);
  /// x [512] to e4m3 codes, group j of 32 at codes + j * code_stride, and one ue8m0 byte a group.
  void (*cast_fp8)(const float* x, uint8_t* codes, int64_t code_stride, uint8_t* exponents);
};

const TargetTables<RowOps>& row_ops();

}  // namespace tilewise::cpu
