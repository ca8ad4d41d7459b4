// Queries to shared memory: rows as they are, e4m3 as bf16, or (fused operators) unpermuted, normed, rotated.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/decode.cuh"
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/params.h"
#include "cuda/portable/source.cuh"

namespace tilewise::cuda {

// Where 8 columns of a row begin in q.
__device__ inline const uint8_t* query_columns(const ForwardParams& p, const visit::QueryTile& tile, int row,
                                               int piece) {
  const ForwardTensors& t = p.tensors;
  const int64_t head = tile.head(row);
  int64_t at = tile.request * t.q_stride_b + tile.token(row) * t.q_stride_s;
  if (p.shape.fused) {
    // Channels in groups of 16; of each group all heads lie side by side.
    at += (piece / 2 * p.shape.h_q + head) * 16 + piece % 2 * 8;
  } else {
    at += head * t.q_stride_h + piece * 8;
  }
  return static_cast<const uint8_t*>(t.q) + at * (p.shape.q_dtype == DType::kE4M3 ? 1 : 2);
}

// Starts copying (or copies) a tile's rows to queries [kRows][kDim], zeros behind its last one.
template <int kRows, int kDim, int kThreads>
__device__ void fetch_queries(const ForwardParams& p, const visit::QueryTile& tile, uint8_t* queries) {
  constexpr int kPieces = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const bool exists = row < tile.rows();
    const uint8_t* from = query_columns(p, tile, exists ? row : 0, exists ? piece : 0);
    uint8_t* to = queries + swizzled<kDim * 2>(row, piece);
    if (p.shape.q_dtype != DType::kE4M3) {
      copy_async_16(shared_address(to), from, exists);
    } else {
      const uint2 codes = exists ? *reinterpret_cast<const uint2*>(from) : uint2{0, 0};
      *reinterpret_cast<uint4*>(to) = decode_e4m3(codes, 1.0f);
    }
  }
}

__device__ inline float common_scale(const ForwardParams& p) {
  float scale = p.shape.softmax_scale;
  if (p.tensors.descale_q != nullptr) scale *= p.tensors.descale_q[0] * p.tensors.descale_k[0];
  return scale;
}

// One warp: norm and rotation of a row that is there already. A lane turns one pair of the last 64 columns by
// its cos and sin. Returns the row's factor for its scores.
template <int kDim>
__device__ float transform_query(const ForwardParams& p, float cos, float sin, int row, int lane,
                                 uint8_t* queries) {
  float factor = 1.0f;
  if (p.shape.q_norm) {
    float sum = 0.0f;
    for (int piece = lane; piece < kDim / 8; piece += 32) {
      const uint4 columns = *reinterpret_cast<const uint4*>(queries + swizzled<kDim * 2>(row, piece));
      for (const uint32_t pair : {columns.x, columns.y, columns.z, columns.w}) {
        const float low = __uint_as_float(pair << 16);
        const float high = __uint_as_float(pair & 0xFFFF0000u);
        sum = fmaf(low, low, fmaf(high, high, sum));
      }
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    factor = 1.0f / sqrtf(sum / static_cast<float>(kDim) + p.shape.q_norm_eps);
  }
  __syncwarp();
  constexpr int kFirstPiece = (kDim - kRopeDim) / 8;
  auto* at =
      reinterpret_cast<uint32_t*>(queries + swizzled<kDim * 2>(row, kFirstPiece + lane / 4) + lane % 4 * 4);
  const float even = __uint_as_float(*at << 16);
  const float odd = __uint_as_float(*at & 0xFFFF0000u);
  *at = pack<__nv_bfloat16>(fmaf(even, cos, -(odd * sin)), fmaf(even, sin, odd * cos));
  return factor;
}

// After the rows have arrived: scale [kRows], and the rows' transforms.
template <int kRows, int kDim, int kThreads>
__device__ void finish_queries(const ForwardParams& p, const visit::QueryTile& tile, uint8_t* queries,
                               float* scale) {
  const float common = common_scale(p);
  const int lane = threadIdx.x % 32;
  float cos = 1.0f;
  float sin = 0.0f;
  if (p.shape.fused) {
    // All rows of such a tile are heads of one token.
    const float* cos_sin = cos_sin_of(p, tile.first_token);
    cos = cos_sin[lane];
    sin = cos_sin[kRopeDim / 2 + lane];
  }
  for (int row = threadIdx.x / 32; row < kRows; row += kThreads / 32) {
    float factor = 1.0f;
    if (p.shape.fused && row < tile.rows()) {
      factor = transform_query<kDim>(p, cos, sin, row, lane, queries);
    }
    if (lane == 0) scale[row] = row < tile.rows() ? common * factor : 0.0f;
  }
}

}  // namespace tilewise::cuda
