// The end of a row. First, one thread a row: lse and maximum, and from them the factor for the row's output.
// Then a warp takes the row's 512 columns, or a slice of them, and writes every output it has.
//
// Of a slice each lane has four or eight neighbouring columns: loads and stores of a warp are contiguous, a
// rotated pair lies in one lane, and a cast group of 32 columns in eight or four neighbouring lanes.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "core/numeric.h"
#include "cuda/common/ptx.cuh"
#include "cuda/portable/params.h"
#include "softmax/state.h"

namespace tilewise::cuda {

template <int kSlices, int kWidth>
struct RowValues {
  float v[kSlices][kWidth];
  int first = 0;  // slice of 32 * kWidth columns

  __device__ int column(int i, int lane) const { return kWidth * (32 * (first + i) + lane); }
};

// The weight of a score, or of sums that were measured from it, measured from a maximum that is not below it:
// exactly 1 where both are the same.
__device__ __forceinline__ float weight_of(float score, float max) {
  return exp2_approx((score - softmax::safe_max(max)) * softmax::kLog2e);
}

// Whose row it is.
struct RowPlace {
  int64_t request;
  int64_t token;
  int64_t head;
};

// Row r of a query tile: QueryTile's token and head, without a division.
__device__ inline RowPlace place_in(const ForwardParams& p, const visit::QueryTile& tile, int32_t row) {
  const auto r = static_cast<uint32_t>(tile.row_begin + row);
  const uint32_t token = p.heads.quotient(r);
  return {tile.request, int64_t{tile.first_token} + token,
          int64_t{tile.kv_head} * p.heads.by + (r - token * p.heads.by)};
}

__device__ inline int64_t position_of(const ForwardParams& p, int64_t token) {
  return p.tensors.positions[token * p.tensors.positions_stride];
}

__device__ inline const float* cos_sin_at(const ForwardParams& p, int64_t position) {
  return p.tensors.cos_sin +
         visit::smaller(visit::larger(position, 0), p.shape.max_pos - 1) * p.tensors.cos_sin_stride;
}

__device__ inline float sink_bias_of(const ForwardParams& p, int64_t head) {
  const int64_t at = head * p.tensors.sink_bias_stride;
  switch (p.shape.sink_bias_dtype) {
    case DType::kBF16:
      return bf16_bits_to_f32(static_cast<const uint16_t*>(p.tensors.sink_bias)[at]);
    case DType::kFP16:
      return f16_bits_to_f32(static_cast<const uint16_t*>(p.tensors.sink_bias)[at]);
    default:
      return static_cast<const float*>(p.tensors.sink_bias)[at];
  }
}

// The inverse rotation of the last 64 columns.
template <int kSlices, int kWidth>
__device__ void rotate_back(const float* cos_sin, int lane, RowValues<kSlices, kWidth>& o) {
  const int first = o.column(kSlices - 1, lane) - (kFusedDim - kRopeDim);
  if (first < 0) return;
#pragma unroll
  for (int j = 0; j < kWidth; j += 2) {
    const float cos = cos_sin[(first + j) / 2];
    const float sin = cos_sin[kRopeDim / 2 + (first + j) / 2];
    const float even = o.v[kSlices - 1][j];
    const float odd = o.v[kSlices - 1][j + 1];
    o.v[kSlices - 1][j] = fmaf(even, cos, odd * sin);
    o.v[kSlices - 1][j + 1] = fmaf(even, -sin, odd * cos);
  }
}

// Multiplies by the factor and, in fused operators, turns the output back by cos_sin [64]. A row without
// weight becomes +0 whatever its sums met.
template <int kSlices, int kWidth>
__device__ void finish_output(const ForwardParams& p, float factor, const float* cos_sin, int lane,
                              RowValues<kSlices, kWidth>& o) {
  const bool empty = factor == 0.0f;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) o.v[i][j] *= factor;
  }
  if (empty) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) o.v[i][j] = 0.0f;
    }
  } else if (p.shape.fused) {
    rotate_back(cos_sin, lane, o);
  }
}

// Rows of fp32 may begin at any float; those of narrower types begin at 16 bytes.
__device__ inline bool is_aligned(const void* row) { return reinterpret_cast<uintptr_t>(row) % 16 == 0; }

// n words, which begin at a multiple of their size.
template <int n>
__device__ inline void store_words(const uint32_t (&words)[n], uint8_t* to) {
  if constexpr (n == 4) {
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
  } else if constexpr (n == 2) {
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
  } else {
    static_assert(n == 1);
    *reinterpret_cast<uint32_t*>(to) = words[0];
  }
}

template <class T, int kWidth>
__device__ void store_pairs(const float (&v)[kWidth], uint8_t* to) {
  uint32_t words[kWidth / 2];
#pragma unroll
  for (int j = 0; j < kWidth; j += 2) words[j / 2] = pack<T>(v[j], v[j + 1]);
  store_words(words, to);
}

// Those of the row's first `columns` values that are there, in a 16-bit type or in fp32; `to` is the row's
// first byte.
template <int kSlices, int kWidth>
__device__ void store_values(const RowValues<kSlices, kWidth>& o, DType type, uint8_t* to, int lane,
                             int64_t columns = kFusedDim) {
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    const float (&v)[kWidth] = o.v[i];
    const int64_t at = o.column(i, lane);
    if (at >= columns) continue;
    if (type == DType::kFP32 && is_aligned(to)) {
#pragma unroll
      for (int j = 0; j < kWidth; j += 4) {
        *reinterpret_cast<float4*>(to + 4 * (at + j)) = {v[j], v[j + 1], v[j + 2], v[j + 3]};
      }
    } else if (type == DType::kFP32) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) reinterpret_cast<float*>(to)[at + j] = v[j];
    } else if (type == DType::kFP16) {
      store_pairs<__half>(v, to + 2 * at);
    } else {
      store_pairs<__nv_bfloat16>(v, to + 2 * at);
    }
  }
}

// e4m3 codes and exponent bytes in the fused operators' layout.
template <int kSlices, int kWidth>
__device__ void store_fp8(const Fp8Tensors& t, const CastGroups& groups, int64_t token, int64_t head,
                          const RowValues<kSlices, kWidth>& o, int lane) {
  constexpr int kLanes = kCastGroup / kWidth;  // of a cast group
  const uint32_t size = groups.heads.by;
  const uint32_t group = groups.heads.quotient(static_cast<uint32_t>(head));
  // From one slice to the next there are kWidth cast groups of every head.
  const uint32_t first = (static_cast<uint32_t>(o.column(0, lane)) / kCastGroup) * size +
                         (static_cast<uint32_t>(head) - group * size);
  uint8_t* codes = t.out_fp8 + (token * groups.count + group) * size * kFusedDim + first * kCastGroup +
                   kWidth * lane % kCastGroup;
  uint8_t* exponent = reinterpret_cast<uint8_t*>(t.out_sf + token * t.sf_stride_s + group * t.sf_stride_g +
                                                 first / 4 * t.sf_stride_c) +
                      first % 4;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) {
    // fmaxf leaves NaN out: such an element must not decide its group's exponent.
    float amax = 1e-4f;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) amax = fmaxf(amax, fabsf(o.v[i][j]));
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) {
      amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
    }
    const uint8_t code = e4m3_scale_to_ue8m0(amax);
    // 2^(127 - exponent) is 1 / scale, exactly.
    const float inverse = ue8m0_to_f32(static_cast<uint8_t>(254 - code));
    // The same bits as f32_to_e4m3.
    const auto codes_of = [&](float low, float high) {
      return static_cast<uint32_t>(
          __nv_cvt_float2_to_fp8x2({low * inverse, high * inverse}, __NV_SATFINITE, __NV_E4M3));
    };
    uint32_t words[kWidth / 4];
#pragma unroll
    for (int j = 0; j < kWidth; j += 4) {
      words[j / 4] = codes_of(o.v[i][j], o.v[i][j + 1]) | codes_of(o.v[i][j + 2], o.v[i][j + 3]) << 16;
    }
    store_words(words, codes + i * (kWidth * size * kCastGroup));
    // Four cast groups share a word.
    if (lane % kLanes == 0) exponent[i * (kWidth / 4 * size * t.sf_stride_c * 4)] = code;
  }
}

// The factor for a row's output. With `stores` also stores what else the operator returns of the row.
__device__ inline float end_row_state(const ForwardParams& p, const RowPlace& row,
                                      const softmax::RowState& state, bool stores) {
  const ForwardTensors& t = p.tensors;
  const softmax::RowResult result = p.shape.has_sink_bias
                                        ? softmax::finish_with_sink_bias(state, sink_bias_of(p, row.head))
                                        : softmax::finish(state);
  if (stores) {
    if (t.lse.data != nullptr) *t.lse.at(row.request, row.token, row.head) = result.lse;
    if (t.max_logits.data != nullptr) *t.max_logits.at(row.request, row.token, row.head) = result.max_logit;
  }
  float factor = result.scale;
  // A row without weight stays 0 whatever the sink and the scales are.
  if (p.shape.has_sink && factor != 0.0f) {
    factor *= softmax::sink_factor(result.lse, t.sink[row.head * t.sink_stride]);
  }
  if (t.descale_k != nullptr && factor != 0.0f) factor *= t.descale_k[0];
  return factor;
}

// Stores the output of a row, or slices of it; o is not normalised.
template <int kSlices, int kWidth>
__device__ void store_row_output(const ForwardParams& p, const RowPlace& row, float factor,
                                 const float* cos_sin, int lane, RowValues<kSlices, kWidth>& o) {
  const ForwardTensors& t = p.tensors;
  finish_output(p, factor, cos_sin, lane, o);
  if (p.shape.epilogue == Epilogue::kFp8) {
    if (t.out_bf16.data != nullptr) {
      store_values(o, DType::kBF16, reinterpret_cast<uint8_t*>(t.out_bf16.at(0, row.token, row.head)), lane);
    }
    if (t.out_fp8 != nullptr) store_fp8(t, p.cast, row.token, row.head, o, lane);
  } else {
    store_values(o, p.shape.out_dtype, t.out.at(row.request, row.token, row.head), lane);
  }
}

// The same for a partial result of fused_decode_partials.
__device__ inline float end_partial_state(const ForwardParams& p, const RowPlace& row, int64_t split,
                                          const softmax::RowState& state) {
  const ForwardTensors& t = p.tensors;
  const softmax::RowResult result = softmax::finish(state);
  *(t.lse.at(0, row.token, row.head) + split * t.split_stride_lse) =
      softmax::is_lonely(state) ? -softmax::kInfinity : softmax::lse_to_base2(result.lse);
  return result.scale;
}

template <int kSlices, int kWidth>
__device__ void store_partial_output(const ForwardParams& p, const RowPlace& row, int64_t split, float factor,
                                     const float* cos_sin, int lane, RowValues<kSlices, kWidth>& o) {
  finish_output(p, factor, cos_sin, lane, o);
  store_values(o, DType::kFP32, p.tensors.out.at(0, row.token, row.head) + split * p.tensors.split_stride_out,
               lane);
}

}  // namespace tilewise::cuda
