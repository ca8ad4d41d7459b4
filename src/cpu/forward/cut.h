// How the CPU cuts a forward problem: into query tiles, whose rows share every key they load, and each tile's
// keys into pieces.
#pragma once

#include <cstdint>

#include "ops/forward.h"
#include "visit/interval.h"
#include "visit/query_tile.h"
#include "visit/rules.h"
#include "visit/work.h"

namespace tilewise::cpu {

inline constexpr int32_t kTileKeys = 256;
// Pieces short enough that a single long row keeps a few cores busy, long enough that merging costs nothing.
inline constexpr visit::SegmentRule kPieceRule{.tile = kTileKeys, .min_keys = 1024, .max_segments = 32};

using visit::QueryTile;
using visit::QueryTiles;

/// The keys of a tile: dense, positions of the request's sequence; sparse, places of the token's main list
/// followed by its extra list. They are cut into pieces by the row's own length (or, for partial results,
/// evenly), so that a row's bits do not depend on the batch or on the number of threads.
class KeyCut {
 public:
  KeyCut(const ForwardProblem& problem, const QueryTile& tile) {
    const ForwardShape& shape = problem.shape;
    const int64_t main_limit = shape.dense ? shape.main.width * shape.main.page : shape.main.width;
    main_ = clamped_length(shape.main, problem.main, main_limit, tile.request, tile.first_token);
    length_ =
        main_ + clamped_length(shape.extra, problem.extra, shape.extra.width, tile.request, tile.first_token);
    prefix_ = visit::smaller(shape.indexer_topk, length_);
    head_ = visit::segments_of(static_cast<int32_t>(prefix_), kPieceRule);
    tail_ = visit::segments_of(static_cast<int32_t>(length_ - prefix_), kPieceRule);
    if (shape.epilogue == Epilogue::kPartials) splits_ = shape.num_splits;
  }

  int64_t main_length() const { return main_; }
  int64_t length() const { return length_; }
  /// Pieces that make up the first indexer_topk entries.
  int64_t prefix_pieces() const { return prefix_ > 0 ? head_.count : 0; }
  int64_t pieces() const { return splits_ > 0 ? splits_ : prefix_pieces() + tail_.count; }

  visit::Range piece(int64_t i) const {
    if (splits_ > 0) {
      const int64_t tiles = visit::ceil_div(length_, kTileKeys);
      return {bound(tiles * i / splits_), bound(tiles * (i + 1) / splits_)};
    }
    if (i < prefix_pieces()) return head_.keys(static_cast<int32_t>(i));
    const visit::Range keys = tail_.keys(static_cast<int32_t>(i - prefix_pieces()));
    const auto prefix = static_cast<int32_t>(prefix_);
    return {keys.begin + prefix, keys.end + prefix};
  }

  /// The most pieces that any row of the shape can have.
  static int64_t max_pieces(const ForwardShape& shape) {
    if (shape.epilogue == Epilogue::kPartials) return shape.num_splits;
    const int64_t longest =
        shape.dense ? shape.main.width * shape.main.page : shape.main.width + shape.extra.width;
    const int64_t whole = visit::smaller(visit::larger(visit::ceil_div(longest, kPieceRule.min_keys), 1),
                                         kPieceRule.max_segments);
    return shape.indexer_topk > 0 ? 2 * whole : whole;
  }

 private:
  int32_t bound(int64_t tile) const {
    return static_cast<int32_t>(visit::smaller(tile * kTileKeys, length_));
  }

  int64_t main_ = 0;
  int64_t length_ = 0;
  int64_t prefix_ = 0;
  int64_t splits_ = 0;
  visit::RowSegments head_;
  visit::RowSegments tail_;
};

}  // namespace tilewise::cpu
