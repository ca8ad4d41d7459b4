// The visit of one tile to a selection of blocks, and what a selection needs first: sorting and inverting.
// All blocks and tiles of a list begin at the start of the sequence.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "visit/interval.h"
#include "visit/rules.h"

namespace tilewise::visit {

// The blocks that hold the elements of a range.
TW_HD constexpr Range blocks_of(Range elements, int32_t block) {
  if (elements.empty()) return {};
  return {elements.begin / block, tile_count(elements.end, block)};
}

// Heap sort: in place, without recursion, the same time for every order.
TW_HD constexpr void sort_ascending(int32_t* values, int32_t n) {
  int32_t heap_first = n / 2;
  int32_t heap_end = n;
  while (heap_end > 1) {
    if (heap_first > 0) {
      --heap_first;
    } else {
      --heap_end;
      const int32_t top = values[0];
      values[0] = values[heap_end];
      values[heap_end] = top;
    }
    const int32_t value = values[heap_first];
    int64_t hole = heap_first;
    for (int64_t child = 2 * hole + 1; child < heap_end; child = 2 * hole + 1) {
      if (child + 1 < heap_end && values[child + 1] > values[child]) ++child;
      if (values[child] <= value) break;
      values[hole] = values[child];
      hole = child;
    }
    values[hole] = value;
  }
}

// Writes the distinct ids that lie in `allowed` in ascending order and returns their number.
// ids [n], blocks [n]; the two may be the same array. With allowed = the blocks of keys_seen_by_any, blocks
// that nobody sees fall away together with pads and ids that do not exist.
TW_HD constexpr int32_t select_blocks(const int32_t* ids, int32_t n, Range allowed, int32_t* blocks) {
  int32_t kept = 0;
  bool ascending = true;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t id = ids[i];
    if (id < allowed.begin || id >= allowed.end) continue;
    ascending = ascending && (kept == 0 || blocks[kept - 1] <= id);
    blocks[kept++] = id;
  }
  if (!ascending) sort_ascending(blocks, kept);
  int32_t distinct = 0;
  for (int32_t i = 0; i < kept; ++i) {
    if (distinct == 0 || blocks[distinct - 1] != blocks[i]) blocks[distinct++] = blocks[i];
  }
  return distinct;
}

// The tiles of a selection that lie in an interval. Blocks are cut into `factor` tiles each, and the interval
// into the same tiles; both are ascending, so the interval takes one run out of all tiles of the selection,
// and its full tiles are one run again. Nothing is copied: one selection serves every tile that shares it.
struct ListVisit {
  const int32_t* blocks = nullptr;  // [block_count], ascending, distinct
  int32_t block_count = 0;
  int32_t factor = 1;  // tiles of a block
  int32_t skip = 0;    // tiles of the selection before the visit's first
  int32_t tile = 1;
  int32_t limit = 0;  // elements from here on are needed by nobody
  Segments segments;

  TW_HD constexpr int32_t count() const { return segments.count; }

  TW_HD constexpr Step at(int32_t place) const {
    const int32_t index = skip + place;
    return {blocks[index / factor] * factor + index % factor, segments.form(place)};
  }

  TW_HD constexpr Range elements(int32_t tile_number) const {
    const int64_t begin = int64_t{tile_number} * tile;
    return {static_cast<int32_t>(begin), static_cast<int32_t>(smaller(begin + tile, limit))};
  }

  // Tiles of the whole selection whose number is below this one.
  TW_HD constexpr int32_t tiles_below(int32_t tile_number) const {
    const int32_t block = tile_number / factor;
    const int32_t index = first_where(0, block_count, [&](int32_t i) { return blocks[i] >= block; });
    const bool inside = index < block_count && blocks[index] == block;
    return index * factor + (inside ? tile_number % factor : 0);
  }

  // The place of a tile among the visited ones (its rank, where tiles are accumulated in order), or -1.
  TW_HD constexpr int32_t rank(int32_t tile_number) const {
    const int32_t index = tiles_below(tile_number);
    const bool listed =
        index < block_count * factor && blocks[index / factor] * factor + index % factor == tile_number;
    return listed ? place_of(index) : -1;
  }

  // The same without a search, for a tile whose block is number block_rank of the selection.
  TW_HD constexpr int32_t rank(int32_t tile_number, int32_t block_rank) const {
    return place_of(block_rank * factor + tile_number % factor);
  }

  TW_HD constexpr int32_t length() const {
    return static_cast<int32_t>(smaller(int64_t{count()} * tile, limit));
  }

  // The places [begin, end) as a visit of its own.
  TW_HD constexpr ListVisit slice(int32_t begin, int32_t end) const {
    ListVisit part = *this;
    part.segments = segments.slice(begin, end);
    part.skip += static_cast<int32_t>(smaller(larger(begin, 0), count()));
    return part;
  }

 private:
  TW_HD constexpr int32_t place_of(int32_t index) const {
    return index >= skip && index - skip < count() ? index - skip : -1;
  }
};

// `interval` is the visit without a selection, with its tiles counted from the start of the sequence;
// block must be a multiple of its tile.
TW_HD constexpr ListVisit make_list(const int32_t* blocks, int32_t block_count, int32_t block,
                                    const IntervalVisit& interval) {
  ListVisit visit;
  visit.blocks = blocks;
  visit.block_count = block_count;
  visit.factor = block / interval.tile;
  visit.tile = interval.tile;
  visit.limit = interval.limit;
  const int32_t first = interval.first_tile;
  const Segment full = interval.segments.body();
  visit.skip = visit.tiles_below(first);
  visit.segments = Segments::make(visit.tiles_below(first + interval.count()) - visit.skip,
                                  visit.tiles_below(first + full.first) - visit.skip,
                                  visit.tiles_below(first + full.last) - visit.skip);
  return visit;
}

// The reverse of a selection, as compressed rows: entries [row_ptr[b], row_ptr[b + 1]) are the query blocks
// that selected KV block b, ascending, and the rank of b among the blocks of each (ranks may be null).
// blocks: query block r has the ascending, distinct blocks[r * stride + (0 .. counts[r])], all below
// num_blocks. row_ptr [num_blocks + 1]; q_blocks and ranks [sum of counts]. Returns that sum.
template <class Offset>
TW_HD constexpr int64_t invert_selection(const int32_t* blocks, const int32_t* counts, int32_t q_block_count,
                                         int64_t stride, int32_t num_blocks, Offset* row_ptr,
                                         int32_t* q_blocks, int32_t* ranks) {
  for (int64_t b = 0; b <= num_blocks; ++b) row_ptr[b] = 0;
  for (int32_t r = 0; r < q_block_count; ++r) {
    for (int32_t j = 0; j < counts[r]; ++j) ++row_ptr[int64_t{blocks[r * stride + j]} + 1];
  }
  for (int64_t b = 0; b < num_blocks; ++b) row_ptr[b + 1] += row_ptr[b];
  // Filling moves each row's start to its end, which is the start of the next row.
  for (int32_t r = 0; r < q_block_count; ++r) {
    for (int32_t j = 0; j < counts[r]; ++j) {
      const Offset entry = row_ptr[blocks[r * stride + j]]++;
      q_blocks[entry] = r;
      if (ranks != nullptr) ranks[entry] = j;
    }
  }
  for (int64_t b = num_blocks; b > 0; --b) row_ptr[b] = row_ptr[b - 1];
  row_ptr[0] = 0;
  return row_ptr[num_blocks];
}

}  // namespace tilewise::visit
