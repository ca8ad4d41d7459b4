// Strides of tensors without gaps.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tilewise/tensor.h"

namespace tilewise {

/// Row-major strides, in elements, of the first kMaxRank sizes. Sizes whose product leaves 64 bits get
/// strides of 0: TensorView refuses them, unless the view has no element and with it no use for strides.
inline std::array<int64_t, TensorView::kMaxRank> row_major_strides(std::span<const int64_t> shape) {
  std::array<int64_t, TensorView::kMaxRank> strides{};
  int64_t stride = 1;
  for (size_t i = std::min<size_t>(shape.size(), TensorView::kMaxRank); i-- > 0;) {
    strides[i] = stride;
    if (__builtin_mul_overflow(stride, std::max<int64_t>(1, shape[i]), &stride)) stride = 0;
  }
  return strides;
}

}  // namespace tilewise
