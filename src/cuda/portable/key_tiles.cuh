// Which KV tiles a query tile visits, and how they are cut into pieces.
#pragma once

#include <cstdint>

#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/params.h"
#include "visit/interval.h"
#include "visit/rules.h"
#include "visit/work.h"

namespace tilewise::cuda {

// One KV tile: places [begin, end) of a list (of a sequence, where dense); end - begin <= tile_keys.
struct KeyTile {
  int32_t begin = 0;
  int32_t end = 0;
  bool extra = false;  // of the extra cache
  visit::Form form = visit::Form::kColumns;
};

// Dense: the tiles of an interval. Sparse: a token's list as up to three runs, each rounded up to tiles: the
// first indexer_topk entries, the rest of the main list, the extra list. A tile never holds rows of two
// caches.
struct KeyTiles {
  int32_t tile_keys = 0;
  // dense
  visit::MaskRule rule;
  visit::Range needed;  // keys that some row sees
  visit::IntervalVisit visit;
  // sparse
  int32_t prefix = 0;  // entries
  int32_t main = 0;
  int32_t extra = 0;
  int32_t prefix_tiles = 0;
  int32_t main_tiles = 0;  // together with prefix_tiles
  int32_t count = 0;
  // The lists (of the request's blocks, where dense), and the KV head's first byte in a row.
  const int32_t* main_index = nullptr;
  const int32_t* extra_index = nullptr;
  int64_t head_offset = 0;
  // Of a block: its piece (begin < 0: none), whether that is all there is, otherwise where its partial result
  // goes.
  visit::Range places;
  bool whole = false;
  int32_t slot = 0;

  // `tile_keys` is p.tile_keys, perhaps as a constant: then nothing is divided by it.
  __device__ static KeyTiles of(const ForwardParams& p, const visit::QueryTile& tile, int32_t tile_keys) {
    KeyTiles t;
    t.tile_keys = tile_keys;
    t.main_index = index_of(p.tensors.main, tile);
    t.extra_index = index_of(p.tensors.extra, tile);
    t.head_offset = tile.kv_head * p.tensors.main.head_stride;
    const CacheShape& cache = p.shape.main;
    const auto length_of = [&](const CacheShape& shape, const CacheTensors& tensors, int64_t limit) {
      return clamped_length(shape, tensors, limit, tile.request, tile.first_token);
    };
    if (p.shape.dense) {
      const int64_t length = length_of(cache, p.tensors.main, cache.width * cache.page);
      t.rule = visit::make_mask_rule(static_cast<int32_t>(p.shape.s_q), static_cast<int32_t>(length),
                                     p.shape.causal, p.shape.window.left, p.shape.window.right);
      const visit::Range queries = {static_cast<int32_t>(p.heads.quotient(tile.row_begin)),
                                    static_cast<int32_t>(p.heads.quotient(tile.row_end - 1)) + 1};
      t.needed = visit::keys_seen_by_any(t.rule, queries);
      t.visit = visit::visit_keys(t.rule, queries, t.tile_keys, visit::TileOrigin::kSequence);
      t.count = t.visit.count();
      return t;
    }
    t.main = static_cast<int32_t>(length_of(cache, p.tensors.main, cache.width));
    t.extra = static_cast<int32_t>(length_of(p.shape.extra, p.tensors.extra, p.shape.extra.width));
    t.prefix = static_cast<int32_t>(visit::smaller(p.shape.indexer_topk, t.main));
    t.prefix_tiles = visit::tile_count(t.prefix, t.tile_keys);
    t.main_tiles = t.prefix_tiles + visit::tile_count(t.main - t.prefix, t.tile_keys);
    t.count = t.main_tiles + visit::tile_count(t.extra, t.tile_keys);
    return t;
  }

  __device__ KeyTile at(bool dense, int32_t place) const {
    if (dense) {
      const visit::Step step = visit.at(place);
      const visit::Range keys = visit.elements(step.tile);
      return {keys.begin, keys.end, false, step.form};
    }
    if (place < prefix_tiles) return run(0, place, prefix, false);
    if (place < main_tiles) return run(prefix, place - prefix_tiles, main, false);
    return run(0, place - main_tiles, extra, true);
  }

  // Takes the piece of an item of the caller's plan.
  __device__ void take_item(const int4& item) {
    places = {static_cast<int32_t>(visit::smaller(item.y, count)),
              static_cast<int32_t>(visit::smaller(item.z, count))};
    whole = item.w < 0;
    slot = item.w;
  }

  // Takes piece i. The places are cut into pieces by their number alone, or evenly into the partial results
  // asked for. Returns the number of pieces.
  __device__ int32_t take_piece(const ForwardParams& p, int32_t i) {
    if (p.shape.epilogue == Epilogue::kPartials) {
      const int64_t n = p.shape.num_splits;
      places = {static_cast<int32_t>(count * int64_t{i} / n),
                static_cast<int32_t>(count * (int64_t{i} + 1) / n)};
      return static_cast<int32_t>(n);
    }
    visit::RowSegments cut{.length = count, .step = visit::larger(count, 1), .count = 1};
    if (p.max_pieces > 1) {
      cut = visit::segments_of(count, {.tile = 1,
                                       .min_keys = static_cast<int32_t>(p.min_piece),
                                       .max_segments = static_cast<int32_t>(p.max_pieces)});
    }
    places = i < cut.count ? cut.keys(i) : visit::Range{-1, -1};
    whole = cut.count == 1;
    return cut.count;
  }

 private:
  __device__ static const int32_t* index_of(const CacheTensors& cache, const visit::QueryTile& tile) {
    return cache.index + tile.request * cache.index_stride_b + tile.first_token * cache.index_stride_s;
  }
  __device__ KeyTile run(int32_t first, int32_t index, int32_t end, bool of_extra) const {
    const int32_t begin = first + index * tile_keys;
    return {begin, static_cast<int32_t>(visit::smaller(int64_t{begin} + tile_keys, end)), of_extra,
            visit::Form::kColumns};
  }
};

}  // namespace tilewise::cuda
