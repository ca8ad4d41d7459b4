// The visit of one tile to an interval: a tile of queries to the tiles of keys that it needs, or the reverse.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "visit/rules.h"

namespace tilewise::visit {

TW_HD constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

TW_HD constexpr int32_t tile_count(int32_t length, int32_t tile) {
  return static_cast<int32_t>(ceil_div(length, tile));
}

// The rows of tile number `index` of a sequence; the last tile may be short.
TW_HD constexpr Range tile_range(int32_t index, int32_t tile, int32_t length) {
  const int64_t begin = int64_t{index} * tile;
  return {static_cast<int32_t>(smaller(begin, length)), static_cast<int32_t>(smaller(begin + tile, length))};
}

// The queries of the rows [row_begin, row_end) of a packed tile, where row r is query r / heads.
TW_HD constexpr Range queries_of_rows(int64_t row_begin, int64_t row_end, int32_t heads) {
  if (row_end <= row_begin) return {};
  return {static_cast<int32_t>(row_begin / heads), static_cast<int32_t>((row_end - 1) / heads + 1)};
}

// How a tile is masked: not at all, by two limits per row, by one bit per column from the source, by bits.
enum class Form : int32_t { kFull, kRow, kColumns, kBits };

// The places [first, last) of a visit, all of one form.
struct Segment {
  int32_t first = 0;
  int32_t last = 0;
  Form form = Form::kRow;

  TW_HD constexpr bool empty() const { return first >= last; }
};

struct Step {
  int32_t tile = 0;
  Form form = Form::kRow;
};

// The places of a visit as masked head, full body and masked tail, any of which may be empty. Without a full
// tile all of it is head.
struct Segments {
  int32_t count = 0;
  int32_t full_first = 0;
  int32_t full_last = 0;

  TW_HD constexpr Segment head() const { return {0, full_first, Form::kRow}; }
  TW_HD constexpr Segment body() const { return {full_first, full_last, Form::kFull}; }
  TW_HD constexpr Segment tail() const { return {full_last, count, Form::kRow}; }

  TW_HD constexpr Form form(int32_t place) const {
    return place >= full_first && place < full_last ? Form::kFull : Form::kRow;
  }

  // The places [begin, end), counted from begin.
  TW_HD constexpr Segments slice(int32_t begin, int32_t end) const {
    begin = static_cast<int32_t>(smaller(larger(begin, 0), count));
    end = static_cast<int32_t>(smaller(larger(end, begin), count));
    return make(end - begin, int64_t{full_first} - begin, int64_t{full_last} - begin);
  }

  // Clips the full places to [0, count).
  TW_HD static constexpr Segments make(int32_t count, int64_t full_first, int64_t full_last) {
    full_first = larger(full_first, 0);
    full_last = smaller(full_last, count);
    if (full_first >= full_last) return {count, count, count};
    return {count, static_cast<int32_t>(full_first), static_cast<int32_t>(full_last)};
  }
};

// Where tile 0 begins: at the start of the sequence, or at the first element that the visit needs.
enum class TileOrigin : int32_t { kSequence, kFirstNeeded };

// Tiles first_tile, first_tile + 1, ...: place i of the visit is tile first_tile + i, which holds the
// elements from origin + tile number * tile on. Elements from `limit` on are needed by nobody.
struct IntervalVisit {
  int32_t origin = 0;
  int32_t tile = 1;
  int32_t first_tile = 0;
  int32_t limit = 0;
  Segments segments;

  TW_HD constexpr int32_t count() const { return segments.count; }
  TW_HD constexpr Step at(int32_t place) const { return {first_tile + place, segments.form(place)}; }

  // The elements of a visited tile; short where the visit's last one ends early.
  TW_HD constexpr Range elements(int32_t tile_number) const {
    const int64_t begin = origin + int64_t{tile_number} * tile;
    return {static_cast<int32_t>(begin), static_cast<int32_t>(smaller(begin + tile, limit))};
  }

  // The place of a tile (its rank, where tiles are accumulated in order), or -1 when it is not visited.
  TW_HD constexpr int32_t rank(int32_t tile_number) const {
    const int64_t place = int64_t{tile_number} - first_tile;
    return place >= 0 && place < count() ? static_cast<int32_t>(place) : -1;
  }

  // Elements from the start of the first tile to the last one needed.
  TW_HD constexpr int32_t length() const {
    return count() == 0 ? 0 : limit - static_cast<int32_t>(origin + int64_t{first_tile} * tile);
  }

  // The places [begin, end) as a visit of its own.
  TW_HD constexpr IntervalVisit slice(int32_t begin, int32_t end) const {
    IntervalVisit part = *this;
    part.segments = segments.slice(begin, end);
    part.first_tile += static_cast<int32_t>(smaller(larger(begin, 0), count()));
    if (part.count() > 0) part.limit = elements(part.first_tile + part.count() - 1).end;
    return part;
  }
};

// Rounds `any` outward and `all` inward to tiles.
TW_HD constexpr IntervalVisit make_interval(Range any, Range all, int32_t tile, TileOrigin origin) {
  IntervalVisit visit;
  visit.tile = tile;
  if (any.empty()) return visit;
  visit.origin = origin == TileOrigin::kFirstNeeded ? any.begin : 0;
  visit.limit = any.end;
  const int64_t from = visit.origin;
  const int64_t first = (any.begin - from) / tile;
  const int64_t last = ceil_div(any.end - from, tile);
  const int64_t full_first = ceil_div(larger(all.begin, any.begin) - from, tile);
  const int64_t full_last = (larger(smaller(all.end, any.end), any.begin) - from) / tile;
  visit.first_tile = static_cast<int32_t>(first);
  visit.segments = Segments::make(static_cast<int32_t>(last - first), full_first - first, full_last - first);
  return visit;
}

// The key tiles that a tile of queries visits. A tile is Full when it is complete and every query sees all
// of it.
TW_HD constexpr IntervalVisit visit_keys(const MaskRule& rule, Range queries, int32_t kv_tile,
                                         TileOrigin origin) {
  return make_interval(keys_seen_by_any(rule, queries), keys_seen_by_all(rule, queries), kv_tile, origin);
}

// The query tiles that visit a tile of keys. Give the whole tile, even where the sequence ends inside it:
// then no query tile is Full, and the mask hides the missing keys.
TW_HD constexpr IntervalVisit visit_queries(const MaskRule& rule, Range keys, int32_t q_tile,
                                            TileOrigin origin) {
  return make_interval(queries_that_see_any(rule, keys), queries_that_see_all(rule, keys), q_tile, origin);
}

// The two limits of one row of a Row tile: the columns of `keys` that the query sees, counted from
// keys.begin.
TW_HD constexpr Range visible_columns(const MaskRule& rule, int32_t query, Range keys) {
  const Range seen = rule.keys(query);
  const int64_t begin = larger(seen.begin, keys.begin) - keys.begin;
  const int64_t end = smaller(seen.end, keys.end) - keys.begin;
  if (begin >= end) return {};
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

// Walks a visit, one step ahead of itself, so that a main loop can fetch across the joints of segments.
template <class Visit>
class Cursor {
 public:
  TW_HD constexpr explicit Cursor(const Visit& visit) : visit_(visit) {
    current_ = step(0);
    next_ = step(1);
  }

  TW_HD constexpr bool done() const { return place_ >= visit_.count(); }
  TW_HD constexpr bool has_next() const { return place_ + 1 < visit_.count(); }
  TW_HD constexpr int32_t place() const { return place_; }
  TW_HD constexpr Step current() const { return current_; }
  TW_HD constexpr Step next() const { return next_; }

  TW_HD constexpr void advance() {
    ++place_;
    current_ = next_;
    next_ = step(place_ + 1);
  }

 private:
  TW_HD constexpr Step step(int32_t place) const {
    return place < visit_.count() ? visit_.at(place) : Step{};
  }

  Visit visit_;
  int32_t place_ = 0;
  Step current_;
  Step next_;
};

}  // namespace tilewise::visit
