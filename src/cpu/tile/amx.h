// Tile products on AMX-BF16, and the softmax that prepares P for them.
#pragma once

#include "cpu/elementwise/softmax.h"
#include "cpu/tile/tile.h"

namespace tilewise::cpu {

/// Null where this build has none.
const TileOps* amx_tile_ops();
const SoftmaxOps* amx_softmax_ops();

}  // namespace tilewise::cpu
