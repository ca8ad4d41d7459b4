// Queries to shared memory: rows as they are, e4m3 as bf16, or (fused operators) unpermuted, normed, rotated.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/decode.cuh"
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/params.h"
#include "cuda/portable/source.cuh"

namespace tilewise::cuda {

// Starts copying (or copies) a tile's rows to queries [kRows][kDim], zeros behind its last one. Eight lanes
// take a row, so that its place in q is worked out once.
template <int kRows, int kDim, int kThreads>
__device__ void fetch_queries(const ForwardParams& p, const visit::QueryTile& tile, uint8_t* queries) {
  const ForwardTensors& t = p.tensors;
  const int lane = static_cast<int>(threadIdx.x) % 8;
  const int64_t bytes = p.shape.q_dtype == DType::kE4M3 ? 1 : 2;
  // Fused: channels in groups of 16; of each group all heads lie side by side.
  const int64_t step = (p.shape.fused ? 64 * p.shape.h_q : 64) * bytes;  // to a lane's next piece
#pragma unroll 2
  for (int row = static_cast<int>(threadIdx.x) / 8; row < kRows; row += kThreads / 8) {
    const bool exists = row < tile.rows();
    const int safe = exists ? row : 0;
    const RowPlace place = place_in(p, tile, safe);
    int64_t at = place.request * t.q_stride_b + place.token * t.q_stride_s;
    at += p.shape.fused ? (lane / 2 * p.shape.h_q + place.head) * 16 + lane % 2 * 8
                        : place.head * t.q_stride_h + lane * 8;
    const uint8_t* from = static_cast<const uint8_t*>(t.q) + at * bytes;
#pragma unroll
    for (int i = 0; i < kDim / 64; ++i, from += step) {
      uint8_t* to = queries + swizzled<kDim * 2>(row, 8 * i + lane);
      if (p.shape.q_dtype != DType::kE4M3) {
        copy_async_16(shared_address(to), from, exists);
      } else {
        const uint2 codes = exists ? *reinterpret_cast<const uint2*>(from) : uint2{0, 0};
        *reinterpret_cast<uint4*>(to) = decode_e4m3(codes, 1.0f);
      }
    }
  }
}

__device__ inline float common_scale(const ForwardParams& p) {
  float scale = p.shape.softmax_scale;
  if (p.tensors.descale_q != nullptr) scale *= p.tensors.descale_q[0] * p.tensors.descale_k[0];
  return scale;
}

// One warp: the sum of a row's squares, in every lane.
template <int kDim>
__device__ float sum_of_squares(const uint8_t* queries, int row, int lane) {
  float sum = 0.0f;
  for (int piece = lane; piece < kDim / 8; piece += 32) {
    const uint4 columns = *reinterpret_cast<const uint4*>(queries + swizzled<kDim * 2>(row, piece));
    for (const uint32_t pair : {columns.x, columns.y, columns.z, columns.w}) {
      const float low = __uint_as_float(pair << 16);
      const float high = __uint_as_float(pair & 0xFFFF0000u);
      sum = fmaf(low, low, fmaf(high, high, sum));
    }
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

// One warp: turns the last 64 columns of a row, one pair a lane, by the lane's cos and sin.
template <int kDim>
__device__ void rotate_query(float cos, float sin, int row, int lane, uint8_t* queries) {
  constexpr int kFirstPiece = (kDim - kRopeDim) / 8;
  auto* at =
      reinterpret_cast<uint32_t*>(queries + swizzled<kDim * 2>(row, kFirstPiece + lane / 4) + lane % 4 * 4);
  const float even = __uint_as_float(*at << 16);
  const float odd = __uint_as_float(*at & 0xFFFF0000u);
  *at = pack<__nv_bfloat16>(fmaf(even, cos, -(odd * sin)), fmaf(even, sin, odd * cos));
}

// Fused operators: starts copying the cos and sin of a tile's one token to rotation [kRopeDim].
__device__ inline void fetch_rotation(const float* cos_sin, float* rotation) {
  if (threadIdx.x < kRopeDim) {
    copy_async_4(shared_address(rotation + threadIdx.x), cos_sin + threadIdx.x);
  }
}

// After rows and rotation have arrived: scale [kRows], and the rows' transforms.
template <int kRows, int kDim, int kThreads>
__device__ void finish_queries(const ForwardParams& p, const visit::QueryTile& tile, uint8_t* queries,
                               const float* rotation, float* scale) {
  const float common = common_scale(p);
  if (!p.shape.fused) {
    for (int row = threadIdx.x; row < kRows; row += kThreads) scale[row] = row < tile.rows() ? common : 0.0f;
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float cos = rotation[lane];
  const float sin = rotation[kRopeDim / 2 + lane];
  constexpr int kWarps = kThreads / 32;
  constexpr int kRowsOfWarp = kRows / kWarps;
  static_assert(kRows % kWarps == 0 && kRowsOfWarp <= 32);
  float sum = 0.0f;  // of the warp's row number `lane`
#pragma unroll 4
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int row = warp + i * kWarps;
    if (row >= tile.rows()) break;
    if (p.shape.q_norm) {
      const float squares = sum_of_squares<kDim>(queries, row, lane);
      if (lane == i) sum = squares;
      __syncwarp();
    }
    rotate_query<kDim>(cos, sin, row, lane, queries);
  }
  if (lane >= kRowsOfWarp) return;
  const int row = warp + lane * kWarps;
  float factor = common;
  if (p.shape.q_norm) factor *= 1.0f / sqrtf(sum / static_cast<float>(kDim) + p.shape.q_norm_eps);
  scale[row] = row < tile.rows() ? factor : 0.0f;
}

}  // namespace tilewise::cuda
