// Tile products of bf16 operands on AMX and on AVX-512's dot products, and the softmax and the gradient that
// prepare P and dS for either.
#pragma once

#include "cpu/elementwise/gradient.h"
#include "cpu/elementwise/softmax.h"
#include "cpu/tile/tile.h"

namespace tilewise::cpu {

/// Null where this build has none.
const TileOps* amx_tile_ops();
const TileOps* dot_tile_ops();
const SoftmaxOps* bf16_softmax_ops();
const GradientOps* bf16_gradient_ops();

}  // namespace tilewise::cpu
