// The forward kernel's shared memory: offsets in bytes, computed alike by the host, which asks for the
// memory, and by the kernel.
//
//   queries    [tile_rows][d] 16-bit, swizzled
//   keys       [stages][tile_keys][d] 16-bit, swizzled
//   raw        [tile_keys][raw_row_bytes], of records alone
//   weights    [tile_rows][tile_keys] 16-bit, swizzled; before that, parts of scores
//   partial    [column groups][tile_rows] fp32: each column group's part of a row's maximum or sum
//   scale      [tile_rows] fp32: what a row's scores are multiplied by
//   rotation   [64] fp32: cos and sin, of fused operators
//   limits     [tile_rows][2] int32: the keys that a row sees
//   valid      [stages, at least 2][tile_keys] bytes: whether there is a key
//   barriers   [3] 64-bit, of paired row groups
//   tile       visit::QueryTile
//   key_tiles  KeyTiles
// After the last tile everything is overlaid by the output, [tile_rows][kOutputStride] fp32, except what
// follows `partial`.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "cuda/portable/config.h"

namespace tilewise::cuda {

inline constexpr int32_t kValueDim = 512;  // of V and of the output
/// Floats from one output row to the next in shared memory: rows begin 8 banks apart.
inline constexpr int32_t kOutputStride = kValueDim + 8;

inline constexpr int32_t kQueryTileBytes = 32;
inline constexpr int32_t kKeyTilesBytes = 176;

struct SharedLayout {
  int32_t queries = 0;
  int32_t keys = 0;
  int32_t raw = 0;
  int32_t weights = 0;
  int32_t partial = 0;
  int32_t scale = 0;
  int32_t rotation = 0;
  int32_t limits = 0;
  int32_t valid = 0;
  int32_t barriers = 0;
  int32_t tile = 0;
  int32_t key_tiles = 0;
  int32_t total = 0;
};

/// Of the weights, and of what warps hand over to each other before: a float4 a lane and eight keys.
TW_HD constexpr int32_t weight_bytes(ForwardConfig config) {
  const int32_t weights = config.tile_rows * config.tile_keys * 2;
  const int32_t handed = config.row_groups * config.tile_keys / 8 * 32 * 16;
  return weights > handed ? weights : handed;
}

TW_HD constexpr SharedLayout shared_layout(ForwardConfig config, int32_t d, bool raw, int32_t raw_row_bytes) {
  const int32_t stages = raw ? 1 : config.stages;
  const int32_t column_groups = config.warps / config.row_groups;
  SharedLayout at;
  at.keys = config.tile_rows * d * 2;
  at.raw = at.keys + stages * config.tile_keys * d * 2;
  at.weights = at.raw + (raw ? config.tile_keys * raw_row_bytes : 0);
  at.partial = at.weights + weight_bytes(config);
  const int32_t output = config.tile_rows * kOutputStride * 4;
  if (at.partial < output) at.partial = output;
  at.scale = at.partial + column_groups * config.tile_rows * 4;
  at.rotation = at.scale + config.tile_rows * 4;
  at.limits = at.rotation + kRopeDim * 4;
  at.valid = at.limits + config.tile_rows * 8;
  at.barriers = at.valid + (stages < 2 ? 2 : stages) * config.tile_keys;
  at.tile = at.barriers + 32;  // a multiple of 16 again
  at.key_tiles = at.tile + kQueryTileBytes;
  at.total = at.key_tiles + kKeyTilesBytes;
  return at;
}

}  // namespace tilewise::cuda
