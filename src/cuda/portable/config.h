// The tile shapes of the forward kernel, as rows of data: instances are generated from them, and the plan
// picks one by the rows that share their keys and by the device's shared memory.
#pragma once

#include <cstdint>
#include <optional>

#include "core/host_device.h"
#include "ops/forward.h"
#include "tilewise/device.h"

namespace tilewise::cuda {

/// Warps stand in row_groups x column groups. A warp scores tile_rows / row_groups rows against
/// tile_keys / column groups keys, and sums the same rows of 512 / column groups output columns.
struct ForwardConfig {
  int32_t tile_rows;
  int32_t tile_keys;
  int32_t stages;  // of plain rows; records have one decoded tile and one raw tile
  int32_t warps;
  int32_t row_groups;
};

inline constexpr ForwardConfig kForwardConfigs[] = {
    {64, 64, 2, 8, 2},  // 227 KB of shared memory (H100, H200, B200)
    {64, 32, 2, 8, 2},  // 164 KB (A100)
    {32, 32, 2, 4, 1},  // two blocks on a Hopper multiprocessor, one on an A100's
    {32, 32, 1, 4, 1},  // 99 KB (RTX 30, 40, 50, L40S)
    {16, 32, 2, 4, 1},  // 99 KB, two blocks on a Hopper multiprocessor
};
inline constexpr int32_t kNumForwardConfigs = sizeof(kForwardConfigs) / sizeof(kForwardConfigs[0]);

/// Whether keys go through a raw tile in shared memory that is decoded to bf16.
bool decodes(const ForwardShape& shape);

/// Bytes from one row of a raw tile to the next: the longest token of the caches, padded so that rows begin
/// in different banks.
int32_t raw_row_bytes(const ForwardShape& shape);

int32_t shared_bytes(const ForwardConfig& config, const ForwardShape& shape);

/// Blocks that run at the same time.
int64_t blocks_at_once(const ForwardConfig& config, const ForwardShape& shape, const Device& device);

/// What pieces cost, in cycles: about what an H200 takes.
struct PieceCosts {
  int64_t tile = 0;  // a KV tile
  int64_t start_and_end = 10'000;
  int64_t merge = 6'000;
  int64_t merged_piece = 0;  // of one query tile

  /// Of `pieces` of all query tiles together, of at most `tiles` KV tiles each; `cut`: some are merged.
  TW_HD constexpr int64_t cycles(int64_t pieces, int64_t tiles, int64_t blocks_at_once, bool cut) const {
    const int64_t waves = (pieces + blocks_at_once - 1) / blocks_at_once;
    return waves * (tiles * tile + start_and_end) + (cut ? merge + pieces * merged_piece : 0);
  }
};
PieceCosts piece_costs(const ForwardConfig& config, const ForwardShape& shape);

/// The row of kForwardConfigs for a shape; nothing where none fits the device's shared memory.
std::optional<int32_t> choose_config(const ForwardShape& shape, const Device& device);

}  // namespace tilewise::cuda
