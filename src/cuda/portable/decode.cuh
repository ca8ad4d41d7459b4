// Cached tokens to bf16, eight columns at a time, from a raw row in shared memory. The values are those of
// formats::decode_row (any NaN is as good as another here: products of it are NaN anyway).
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/common/ptx.cuh"
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

// The scale of a group of the scaled segment; `row` is the scales' row of their plane.
template <formats::ScaleType kType>
__device__ __forceinline__ float scale_of(const formats::Scales& scales, const uint8_t* row, int group) {
  const uint8_t* place = row + formats::scale_offset(scales, group);
  if constexpr (kType == formats::ScaleType::kFp32) {
    return *reinterpret_cast<const float*>(place);
  } else {
    return formats::scale_value(kType, *place);
  }
}

// A segment by eight lanes, eight columns each at a time. `scales` is the row of their plane; `store(piece,
// columns)` takes the columns 8 * piece ... of the token.
template <formats::Element kElement, formats::ScaleType kType, class Store>
__device__ __forceinline__ void decode_segment(const formats::RecordSpec& spec,
                                               const formats::Segment& segment, const uint8_t* row,
                                               const uint8_t* scales, int lane, const Store& store) {
  const uint8_t* from = row + segment.offset;
  const int group_shift = 31 - __clz(spec.scales.group | 1);
#pragma unroll 4
  for (int column = 8 * lane; column < segment.columns; column += 64) {
    float scale = 1.0f;
    if constexpr (kType != formats::ScaleType::kNone) {
      scale = scale_of<kType>(spec.scales, scales, column >> group_shift);
    }
    uint4 columns;
    if constexpr (kElement == formats::Element::kBf16) {
      columns = *reinterpret_cast<const uint4*>(from + 2 * column);
    } else if constexpr (kElement == formats::Element::kE4m3) {
      columns = decode_e4m3(*reinterpret_cast<const uint2*>(from + column), scale);
    } else {
      columns = decode_e2m1(*reinterpret_cast<const uint32_t*>(from + column / 2), scale);
    }
    store((segment.first + column) / 8, columns);
  }
}

// A token whose planes lie one after another at `row` (16-byte aligned), by eight lanes. Segments and groups
// are whole multiples of 64 and of 8 columns.
template <class Store>
__device__ __forceinline__ void decode_row(const formats::RecordSpec& spec, const uint8_t* row, int lane,
                                           const Store& store) {
  using formats::Element;
  using formats::ScaleType;
  const uint8_t* scales = formats::plane_row(row, 1, spec, spec.scales.plane, 0);
  for (int k = 0; k < spec.num_segments; ++k) {
    const formats::Segment& segment = spec.segments[k];
    const uint8_t* plane = formats::plane_row(row, 1, spec, segment.plane, 0);
    const auto decode = [&]<Element kElement, ScaleType kType>() {
      decode_segment<kElement, kType>(spec, segment, plane, scales, lane, store);
    };
    if (segment.element == Element::kBf16) {
      decode.template operator()<Element::kBf16, ScaleType::kNone>();
    } else if (segment.element == Element::kE2m1) {
      decode.template operator()<Element::kE2m1, ScaleType::kE4m3>();
    } else if (!segment.scaled) {
      decode.template operator()<Element::kE4m3, ScaleType::kNone>();
    } else if (spec.scales.type == ScaleType::kFp32) {
      decode.template operator()<Element::kE4m3, ScaleType::kFp32>();
    } else {
      decode.template operator()<Element::kE4m3, ScaleType::kUe8m0>();
    }
  }
}

}  // namespace tilewise::cuda
