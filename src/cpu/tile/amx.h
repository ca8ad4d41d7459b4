// Tile products on AMX-BF16, and the softmax and the gradient that prepare P and dS for them.
#pragma once

#include "cpu/elementwise/gradient.h"
#include "cpu/elementwise/softmax.h"
#include "cpu/tile/tile.h"

namespace tilewise::cpu {

/// Null where this build has none.
const TileOps* amx_tile_ops();
const SoftmaxOps* amx_softmax_ops();
const GradientOps* amx_gradient_ops();

}  // namespace tilewise::cpu
