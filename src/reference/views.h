// Reading elements of TensorViews as plain floats, in logical order, whatever the strides.
#pragma once

#include <cstdint>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::reference {

/// Reads `count` elements that lie side by side from element `offset` of the view's memory on.
/// float32, bfloat16, float16 and float8_e4m3fn, all exact in fp32.
void read_floats(const TensorView& view, int64_t offset, int64_t count, float* out);

/// All elements, the last dimension fastest.
std::vector<float> to_floats(const TensorView& view);

/// All elements of [b, h_q, s_q] (the decode operators' lse) in the order [b, s_q, h_q] of AttentionResult.
std::vector<float> heads_last(const TensorView& view);

/// One element of a one-dimensional view of floats, or of int32.
float float_at(const TensorView& view, int64_t i);

int64_t int_at(const TensorView& view, int64_t i);

}  // namespace tilewise::reference
