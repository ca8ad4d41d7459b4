// Cached tokens to bf16, eight columns at a time, from a raw row in shared memory. The values are those of
// formats::decode_row (any NaN is as good as another here: products of it are NaN anyway).
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/raw_layout.h"
#include "formats/codec.h"
#include "formats/record.h"

namespace tilewise::cuda {

// A pair of e4m3 codes in the low 16 bits.
__device__ __forceinline__ float2 e4m3_pair(uint32_t codes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return __half22float2(__half2(pair));
}

// The value of a code in the low 4 bits, 2^126 times too small; exact, as subnormal floats are.
__device__ __forceinline__ float e2m1_shrunk(uint32_t code) {
  return __uint_as_float((code & 8u) << 28 | (code & 7u) << 22);
}

__device__ __forceinline__ uint4 decode_e4m3(uint2 codes, float scale) {
  const auto two = [&](uint32_t pair) {
    const float2 v = e4m3_pair(pair & 0xFFFFu);
    return pack<__nv_bfloat16>(v.x * scale, v.y * scale);
  };
  return {two(codes.x), two(codes.x >> 16), two(codes.y), two(codes.y >> 16)};
}

__device__ __forceinline__ uint4 decode_e2m1(uint32_t codes, float scale) {
  constexpr float kUnshrink = 0x1p126f;
  const auto two = [&](uint32_t pair) {
    return pack<__nv_bfloat16>(e2m1_shrunk(pair) * kUnshrink * scale,
                               e2m1_shrunk(pair >> 4) * kUnshrink * scale);
  };
  return {two(codes), two(codes >> 8), two(codes >> 16), two(codes >> 24)};
}

template <formats::ScaleType kType>
__device__ __forceinline__ float stored_scale(const uint8_t* place) {
  if constexpr (kType == formats::ScaleType::kFp32) {
    return *reinterpret_cast<const float*>(place);
  } else {
    return formats::scale_value(kType, *place);
  }
}

// The scale of a group; `scales` are a row's.
template <formats::ScaleType kType>
__device__ __forceinline__ float scale_of(const RawLayout& layout, const uint8_t* scales, int group) {
  if constexpr (kType == formats::ScaleType::kNone) return 1.0f;
  const int place = layout.scales_by_quarters ? 8 * (group & 3) + (group >> 2) : group;
  return stored_scale<kType>(scales + place * formats::scale_bytes(kType));
}

// Eight columns of a segment.
template <formats::Element kElement, formats::ScaleType kType>
__device__ __forceinline__ uint4 decode_columns(const RawLayout& layout, const RawSegment& segment,
                                                const uint8_t* row, int column) {
  const uint8_t* from = row + segment.from;
  const float scale = scale_of<kType>(layout, row + layout.scales_from, column >> layout.group_shift);
  if constexpr (kElement == formats::Element::kBf16) {
    return *reinterpret_cast<const uint4*>(from + 2 * column);
  } else if constexpr (kElement == formats::Element::kE4m3) {
    return decode_e4m3(*reinterpret_cast<const uint2*>(from + column), scale);
  } else {
    return decode_e2m1(*reinterpret_cast<const uint32_t*>(from + column / 2), scale);
  }
}

// A segment of kRows raw rows, `stride` bytes apart, by eight lanes, eight columns each at a time.
template <formats::Element kElement, formats::ScaleType kType, int kRows, class Store>
__device__ __forceinline__ void decode_segment(const RawLayout& layout, const RawSegment& segment,
                                               const uint8_t* rows, int stride, int lane,
                                               const Store& store) {
  // Several are read before any is stored: to the compiler a store could change what is read.
  constexpr int kAtOnce = 2;
  const auto decode = [&]<int kPieces>(int i) {
    uint4 columns[kRows][kPieces];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        columns[r][j] =
            decode_columns<kElement, kType>(layout, segment, rows + r * stride, 8 * lane + 64 * (i + j));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) store(r, segment.first / 8 + 8 * (i + j) + lane, columns[r][j]);
    }
  };
  int i = 0;
#pragma unroll 1
  for (; i + kAtOnce <= segment.columns / 64; i += kAtOnce) decode.template operator()<kAtOnce>(i);
  if (i < segment.columns / 64) decode.template operator()<1>(i);
}

// kRows raw rows, `stride` bytes apart (16-byte aligned), by eight lanes. store(row, piece, columns) takes
// the columns 8 * piece ... of a token. Segments and groups are whole multiples of 64 and of 8 columns.
template <int kRows, class Store>
__device__ __forceinline__ void decode_rows(const RawLayout& layout, const uint8_t* rows, int stride,
                                            int lane, const Store& store) {
  using formats::Element;
  using formats::ScaleType;
#pragma unroll 1
  for (int k = 0; k < layout.num_segments; ++k) {
    const RawSegment segment = layout.segments[k];
    const auto decode = [&]<Element kElement, ScaleType kType>() {
      decode_segment<kElement, kType, kRows>(layout, segment, rows, stride, lane, store);
    };
    if (segment.element == Element::kBf16) {
      decode.template operator()<Element::kBf16, ScaleType::kNone>();
    } else if (segment.element == Element::kE2m1) {
      decode.template operator()<Element::kE2m1, ScaleType::kE4m3>();
    } else if (segment.scale == ScaleType::kNone) {
      decode.template operator()<Element::kE4m3, ScaleType::kNone>();
    } else if (segment.scale == ScaleType::kFp32) {
      decode.template operator()<Element::kE4m3, ScaleType::kFp32>();
    } else {
      decode.template operator()<Element::kE4m3, ScaleType::kUe8m0>();
    }
  }
}

}  // namespace tilewise::cuda
