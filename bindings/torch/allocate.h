// Outputs that the caller left out: type, shape and strides of each, from inputs that nobody has judged yet.
#pragma once

#include <algorithm>

#include "convert.h"
#include "tilewise/ops/dense_decode.h"

namespace tilewise::bindings {

inline constexpr int64_t kHeadSize = 512;  // of V, and of everything in the fused operators

/// A wrong number of groups is refused later; until then it must divide.
inline int64_t channels_of_group(int64_t h_q, int64_t n_groups) {
  return n_groups > 0 ? h_q / n_groups * kHeadSize : 0;
}

inline TensorView allocate_out_fp8(Outputs& outputs, int64_t s_q, int64_t h_q, int64_t n_groups) {
  return outputs.empty(DType::kE4M3, {s_q, std::max<int64_t>(n_groups, 0), channels_of_group(h_q, n_groups)});
}

/// Tokens lie side by side, a column every ceil4(s_q) elements.
inline TensorView allocate_out_sf(Outputs& outputs, int64_t s_q, int64_t h_q, int64_t n_groups) {
  constexpr int64_t kChannelsOfWord = 128;
  const int64_t columns = channels_of_group(h_q, n_groups) / kChannelsOfWord;
  const int64_t column_stride = (s_q + 3) / 4 * 4;
  return outputs.empty_strided(DType::kInt32, {s_q, std::max<int64_t>(n_groups, 0), columns},
                               {1, columns * column_stride, column_stride});
}

/// [b, s_q, h_q, d_v] in q's type, bfloat16 for an 8-bit q.
inline TensorView allocate_dense_out(Outputs& outputs, const DenseDecodeArgs& args) {
  const TensorView& q = args.q;
  return outputs.empty(q.dtype() == DType::kFP16 ? DType::kFP16 : DType::kBF16,
                       {size_or_zero(q, 0), size_or_zero(q, 1), size_or_zero(q, 2),
                        std::clamp<int64_t>(args.d_v, 0, kHeadSize)});
}

/// Scales of permuted weights: as the ones given, column-major.
inline TensorView allocate_column_major(Outputs& outputs, const TensorView& like) {
  const int64_t rows = size_or_zero(like, 0);
  return outputs.empty_strided(DType::kInt32, {rows, size_or_zero(like, 1)}, {1, (rows + 3) / 4 * 4});
}

inline TensorView allocate_like_3d(Outputs& outputs, const TensorView& like, DType type) {
  return outputs.empty(type, {size_or_zero(like, 0), size_or_zero(like, 1), size_or_zero(like, 2)});
}

}  // namespace tilewise::bindings
