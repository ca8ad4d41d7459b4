// Tile products of every instruction set that Highway was built for.
#pragma once

#include "cpu/targets.h"
#include "cpu/tile/tile.h"

namespace tilewise::cpu {

const TargetTables<TileOps>& simd_tile_ops();

}  // namespace tilewise::cpu
