// What the backward kernels share beside their tile products.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/ledger.h"
#include "cpu/elementwise/gradient.h"
#include "softmax/state.h"

namespace tilewise::cpu {

/// Books or grants the memory of a tile's P and dS, whose scores and dO V^T lie in s and dp.
inline GradientWeights lay_out_weights(const GradientOps& ops, int64_t keys, int64_t rows, float* s,
                                       float* dp, Layouter& layout) {
  GradientWeights weights{s, dp, dp};
  if (ops.keys_bytes == nullptr) return weights;
  const auto by_keys = static_cast<int64_t>(ops.keys_bytes(keys, rows));
  layout.bytes(weights.p_keys, by_keys);
  layout.bytes(weights.ds_keys, by_keys);
  layout.bytes(weights.ds_rows, static_cast<int64_t>(ops.rows_bytes(keys, rows)));
  return weights;
}

/// What lay_out_weights booked by keys, from key `begin` on, a multiple of 16; `rows` as there.
inline const void* weights_from(const GradientOps& ops, const void* by_keys, int64_t begin, int64_t rows) {
  const auto* bytes = static_cast<const std::byte*>(by_keys);
  if (ops.keys_bytes == nullptr) return bytes + begin * rows * static_cast<int64_t>(sizeof(float));
  return bytes + ops.keys_bytes(begin, rows);
}

/// delta of a row: dO * O over n columns, a multiple of 4. In double, in four sums side by side.
inline float row_delta(const float* d_out, const float* out, int64_t n) {
  double sums[4] = {};
  for (int64_t i = 0; i < n; i += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) {
      sums[lane] += static_cast<double>(d_out[i + lane]) * static_cast<double>(out[i + lane]);
    }
  }
  return static_cast<float>((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// What a row takes from the gradient of its head's sink_bias; `value` is its sum of P * dP. That is dO * O
/// with the O from before it was rounded, as the rows' shares may cancel. An infinite sink has no gradient,
/// nor has a row without keys, whose lse is +inf.
inline double sink_share(float sink, float lse, float value) {
  if (std::isinf(sink) || lse == softmax::kInfinity) return 0.0;
  return static_cast<double>(softmax::sink_bias_probability(sink, lse)) * static_cast<double>(value);
}

}  // namespace tilewise::cpu
