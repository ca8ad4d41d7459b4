// Who does what: how the keys of a row are cut into segments (split-KV), and which worker takes which.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "visit/interval.h"
#include "visit/rules.h"

namespace tilewise::visit {

// The length of segments is the larger of min_keys and a max_segments-th of the row, in whole tiles. It
// follows from the row's own length alone: that is what keeps a row's bits apart from the batch and the
// workers. min_keys = tile and max_segments = INT32_MAX gives segments of one tile, for a cut that need not
// be invariant.
struct SegmentRule {
  int32_t tile = 64;
  int32_t min_keys = 512;
  int32_t max_segments = 32;
};

struct RowSegments {
  int32_t length = 0;
  int64_t step = 1;  // keys of a segment, a multiple of the tile
  // At least 1: the one segment of an empty row has no keys, but somebody writes its output.
  int32_t count = 0;

  TW_HD constexpr Range keys(int32_t segment) const {
    const int64_t begin = segment * step;
    return {static_cast<int32_t>(smaller(begin, length)),
            static_cast<int32_t>(smaller(begin + step, length))};
  }
};

TW_HD constexpr RowSegments segments_of(int32_t length, const SegmentRule& rule) {
  const auto round_up = [](int64_t a, int64_t b) { return quotient32(a + b - 1, b); };
  const int64_t wanted = larger(round_up(length, rule.max_segments), rule.min_keys);
  const int64_t step = round_up(wanted, rule.tile) * rule.tile;
  // One segment even where a segment of 2^31 keys would not fit into the division.
  return {length, step, step >= length ? 1 : static_cast<int32_t>(round_up(length, step))};
}

// Segments [first, last) of a visit whose length() was cut with the same tile.
template <class Visit>
TW_HD constexpr Visit slice_segments(const Visit& visit, const RowSegments& segments, int32_t first,
                                     int32_t last) {
  const int64_t tiles = segments.step / visit.tile;
  return visit.slice(static_cast<int32_t>(smaller(first * tiles, visit.count())),
                     static_cast<int32_t>(smaller(last * tiles, visit.count())));
}

// Segments [first_segment, last_segment) of a row tile, done by one worker.
struct WorkItem {
  int32_t row_tile = 0;
  int32_t first_segment = 0;
  int32_t last_segment = 0;
};

// All row tiles laid end to end on one line, each as a gap of row_cost (what starting a row costs, in tiles)
// and then its tiles. The line is cut into one equal part per worker, who takes the segments whose middle
// falls there. Places are doubled, so that middles are whole numbers.
struct WorkLine {
  int64_t twice_length = 0;
  int32_t workers = 1;
  int32_t row_cost = 0;
  int32_t tile = 1;

  TW_HD constexpr int64_t row_length(const RowSegments& row) const {
    return row_cost + ceil_div(row.length, tile);
  }

  // Where a worker's part begins: worker * length / workers, in an order that does not overflow.
  TW_HD constexpr int64_t twice_begin(int32_t worker) const {
    return worker * (twice_length / workers) + worker * (twice_length % workers) / workers;
  }

  // row_start: where the row's gap begins.
  TW_HD constexpr int32_t worker_of(int64_t row_start, const RowSegments& row, int32_t segment) const {
    const Range keys = row.keys(segment);
    const int64_t twice_middle = 2 * (row_start + row_cost) + keys.begin / tile + ceil_div(keys.end, tile);
    return first_where(0, workers - 1,
                       [&](int32_t worker) { return twice_begin(worker + 1) > twice_middle; });
  }

  // The first segment after `first` that belongs to a later worker than `first` does, or the row's count.
  TW_HD constexpr int32_t end_of_run(int64_t row_start, const RowSegments& row, int32_t first) const {
    const int32_t worker = worker_of(row_start, row, first);
    return first_where(first + 1, row.count,
                       [&](int32_t segment) { return worker_of(row_start, row, segment) > worker; });
  }
};

// lengths [row_tiles]: keys of each row tile.
TW_HD constexpr WorkLine make_work_line(const int32_t* lengths, int32_t row_tiles, const SegmentRule& rule,
                                        int32_t row_cost, int32_t workers) {
  WorkLine line{.twice_length = 0, .workers = workers, .row_cost = row_cost, .tile = rule.tile};
  for (int32_t r = 0; r < row_tiles; ++r) {
    line.twice_length += 2 * line.row_length(segments_of(lengths[r], rule));
  }
  return line;
}

// Room that assign_work needs: each worker but the first begins at most one row tile anew.
TW_HD constexpr int64_t max_work_items(int32_t row_tiles, int32_t workers) {
  return row_tiles == 0 ? 0 : int64_t{row_tiles} + workers - 1;
}

// Cuts all segments of all row tiles, in order, into one even share per worker, and returns the number of
// items. items [max_work_items]; worker w has items [worker_begin[w], worker_begin[w + 1]); worker_begin
// [workers + 1]. No worker has more than an even share plus one segment and row_cost.
TW_HD constexpr int64_t assign_work(const int32_t* lengths, int32_t row_tiles, const SegmentRule& rule,
                                    int32_t row_cost, int32_t workers, WorkItem* items,
                                    int64_t* worker_begin) {
  const WorkLine line = make_work_line(lengths, row_tiles, rule, row_cost, workers);
  int64_t count = 0;
  int64_t row_start = 0;
  int32_t begun = 0;  // workers whose first item is settled
  for (int32_t r = 0; r < row_tiles; ++r) {
    const RowSegments row = segments_of(lengths[r], rule);
    for (int32_t first = 0; first < row.count;) {
      const int32_t worker = line.worker_of(row_start, row, first);
      const int32_t last = line.end_of_run(row_start, row, first);
      while (begun <= worker) worker_begin[begun++] = count;
      items[count++] = {r, first, last};
      first = last;
    }
    row_start += line.row_length(row);
  }
  while (begun <= workers) worker_begin[begun++] = count;
  return count;
}

}  // namespace tilewise::visit
