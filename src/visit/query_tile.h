// Query tiles: rows that share every key they load.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "visit/interval.h"
#include "visit/rules.h"

namespace tilewise::visit {

// Rows [row_begin, row_end) of one KV head. Row r is token first_token + r / group, head
// kv_head * group + r % group. Sparse problems have a key list per token, so their tiles hold one token.
// Numbers of 32 bits, because GPUs divide 64 bits slowly: every row has an output of a kilobyte, so that no
// GPU's memory holds 2^31 of them.
struct QueryTile {
  int32_t request = 0;
  int32_t first_token = 0;
  int32_t kv_head = 0;
  int32_t group = 1;
  int32_t row_begin = 0;
  int32_t row_end = 0;

  TW_HD constexpr int32_t rows() const { return row_end - row_begin; }
  TW_HD constexpr int32_t token(int32_t row) const {
    return first_token + static_cast<int32_t>(quotient32(row_begin + row, group));
  }
  TW_HD constexpr int32_t head(int32_t row) const {
    return kv_head * group + static_cast<int32_t>(remainder32(row_begin + row, group));
  }
};

// Enumerates the query tiles of a problem; those of one group of rows are neighbours.
struct QueryTiles {
  int64_t batch = 1;
  int64_t groups = 1;  // token groups a request: 1 where its tokens share their keys
  int64_t tokens = 1;  // of a group
  int64_t h_kv = 1;
  int64_t heads = 1;  // query heads a KV head
  int64_t tile_rows = 1;

  TW_HD constexpr int64_t rows_of_group() const { return tokens * heads; }
  TW_HD constexpr int64_t tiles_of_group() const { return ceil_div(rows_of_group(), tile_rows); }
  TW_HD constexpr int64_t count() const { return batch * groups * h_kv * tiles_of_group(); }

  TW_HD constexpr QueryTile at(int64_t index) const {
    int64_t left = index;
    const auto take = [&left](int64_t count) {
      const int64_t i = remainder32(left, count);
      left = quotient32(left, count);
      return static_cast<int32_t>(i);
    };
    QueryTile tile;
    tile.group = static_cast<int32_t>(heads);
    const int64_t row_begin = take(tiles_of_group()) * tile_rows;
    tile.row_begin = static_cast<int32_t>(row_begin);
    tile.row_end = static_cast<int32_t>(smaller(row_begin + tile_rows, rows_of_group()));
    tile.kv_head = take(h_kv);
    tile.first_token = take(groups);
    tile.request = take(batch);
    return tile;
  }
};

}  // namespace tilewise::visit
