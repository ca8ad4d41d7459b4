// The one tolerance of gradients, which are compared as whole tensors: by their direction, and by how far the
// same formula in the precision of a good kernel (`rounded`) is from the oracle.
//
//   cosine with the oracle >= a given one
//   |actual - oracle| <= 1.5 * max(|rounded in the output type - oracle|, draw) + noise
//
// where |x| is the root of the sum of squares. `draw` is how far rounding of P and dS moves the gradient, if
// every such error has its typical size: in a tensor that few pairs of query and key make up, the error of
// `rounded` may be next to nothing by luck. `noise` is how far rounding of sums in fp32 moves it. It matters
// where the gradient cancels (a row with a single key: P = 1, dP = delta) and where nothing is rounded to
// fewer bits (d_sink, kl_target). A gradient that noise, or its own type's rounding, may turn by itself has
// no direction to compare.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/bound.h"

namespace tilewise::reference {

/// The gradient of one tensor.
struct GradientTensor {
  int64_t row_length = 1;
  std::vector<double> values;    ///< [rows, row_length]
  std::vector<uint8_t> reached;  ///< [rows]: 0 where no pair of query and key has a part in the row
  double draw = 0;               ///< of attention in kDouble, as is the next
  double noise = 0;
};

inline constexpr double kCosine = 0.99999;            ///< dense and block-sparse gradients; d_sink, kl_target
inline constexpr double kTokenSparseCosine = 0.9999;  ///< dq and dkv of token lists

/// Compares a gradient that was written in `type`. Rows that nothing reaches must be exactly 0. Where the
/// oracle has an inf or a NaN, so must the result; rows with such values are compared in those places alone.
Comparison compare_gradient(std::span<const float> actual, const GradientTensor& oracle,
                            const GradientTensor& rounded, OutputType type, double cosine);

}  // namespace tilewise::reference
