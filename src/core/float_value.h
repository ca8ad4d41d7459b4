// Single values of a float tensor whose type is known at run time.
#pragma once

#include <cstdint>

#include "core/numeric.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Element `at` of bfloat16, float16 or float32 data.
inline float float_value(const void* data, DType type, int64_t at) {
  switch (type) {
    case DType::kBF16:
      return bf16_bits_to_f32(static_cast<const uint16_t*>(data)[at]);
    case DType::kFP16:
      return f16_bits_to_f32(static_cast<const uint16_t*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

/// Rounds to nearest even.
inline void set_float_value(void* data, DType type, int64_t at, float value) {
  switch (type) {
    case DType::kBF16:
      static_cast<uint16_t*>(data)[at] = f32_to_bf16_bits(value);
      return;
    case DType::kFP16:
      static_cast<uint16_t*>(data)[at] = f32_to_f16_bits(value);
      return;
    default:
      static_cast<float*>(data)[at] = value;
  }
}

}  // namespace tilewise
