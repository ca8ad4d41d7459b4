// What the forward kernels are launched with.
#pragma once

#include <cstdint>

#include "cuda/portable/config.h"
#include "cuda/portable/raw_layout.h"
#include "ops/forward.h"
#include "visit/query_tile.h"

namespace tilewise::cuda {

/// A query tile, the slot of its first piece's partial result, its pieces.
struct alignas(16) CutTile {
  int32_t tile = 0;
  int32_t slot = 0;
  int32_t pieces = 0;
};

struct alignas(16) PlanHeader {
  int32_t cut_tiles = 0;
  int32_t most_pieces = 0;
  // Of the shape that it was made for.
  int32_t num_tiles = 0;
  int32_t tile_rows = 0;
};

TW_HD constexpr bool is_plan_for(const PlanHeader& header, int64_t num_tiles, int64_t tile_rows) {
  return header.num_tiles == num_tiles && header.tile_rows == tile_rows;
}

/// Output and softmax state of pieces that wait for their merge; null where no query tile has two.
struct Partials {
  CutTile* cut = nullptr;   // [query tiles], or a plan's
  float* out = nullptr;     // [slots][tile_rows][512], not normalised
  float2* state = nullptr;  // [slots][tile_rows]: maximum, sum
  int32_t slots = 0;
};

/// Division of 0 <= n < 2^31 by a positive number, as a multiplication.
struct Divisor {
  uint32_t by = 1;
  uint32_t factor = 0;
  int32_t shift = 0;

  static Divisor of(int64_t by) {
    Divisor d{.by = static_cast<uint32_t>(by), .factor = 0, .shift = 31};
    while ((int64_t{1} << (d.shift - 31)) < by) ++d.shift;
    d.factor = static_cast<uint32_t>(((uint64_t{1} << d.shift) + d.by - 1) / d.by);
    return d;
  }
  TW_HD constexpr uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>((uint64_t{n} * factor) >> shift);
  }
};

/// Heads whose cast outputs lie together.
struct CastGroups {
  int64_t count = 1;
  Divisor heads;  // of a group

  static CastGroups of(int64_t h_q, int64_t n_groups) { return {n_groups, Divisor::of(h_q / n_groups)}; }
};

struct ForwardParams {
  ForwardSizes shape;
  ForwardTensors tensors;
  visit::QueryTiles tiles;
  int64_t tile_keys = 0;
  int64_t min_piece = 1;        // KV tiles
  int64_t max_pieces = 1;       // of a query tile
  const int4* items = nullptr;  // of the caller's plan (ops/decode_plan.h): a block's; null: cut by shape
  const PlanHeader* plan_header = nullptr;
  int32_t num_tiles = 0;
  Partials partials;  // where max_pieces > 1 or there is a plan
  Divisor heads;      // query heads of a KV head
  CastGroups cast;
  Divisor main_page;
  Divisor extra_page;
  int32_t main_slots = 0;  // entries of a list from here on do not exist
  int32_t extra_slots = 0;
  RawLayout main_raw;
  RawLayout extra_raw;
  int32_t raw_row_bytes = 0;
};

/// For a row of kForwardConfigs, without pieces and their memory.
ForwardParams forward_params(const ForwardProblem& problem, const ForwardConfig& config);

}  // namespace tilewise::cuda
