// Interval visits against the element predicate, for every tile shape in use: nothing missed, nothing visited
// twice, nothing unmasked that a row may not see, nothing loaded in vain; slices and the reverse agree.
#include "visit/interval.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/property/mask_cases.h"

namespace tilewise::visit {
namespace {

constexpr int32_t kQueryTiles[] = {1, 2, 16, 64, 128};
constexpr int32_t kKeyTiles[] = {16, 64, 128, 256};
constexpr TileOrigin kOrigins[] = {TileOrigin::kSequence, TileOrigin::kFirstNeeded};

std::vector<MaskCase> all_masks() {
  std::vector<MaskCase> masks = chosen_masks();
  for (const MaskCase& mask : random_masks(11, 120)) masks.push_back(mask);
  return masks;
}

// The visit of one tile whose rows are these queries, one entry per row.
void check_rows(const MaskCase& mask, const SeenKeys& seen, const std::vector<int32_t>& rows,
                const IntervalVisit& visit) {
  std::vector<int32_t> covered(rows.size(), 0);
  int32_t end_before = 0;
  for (int32_t i = 0; i < visit.count(); ++i) {
    const Step step = visit.at(i);
    const Range keys = visit.elements(step.tile);
    ASSERT_GE(keys.begin, end_before) << "tile " << step.tile << " overlaps the one before";
    ASSERT_GT(keys.size(), 0);
    ASSERT_LE(keys.size(), visit.tile);
    ASSERT_LE(keys.end, mask.len_k);
    end_before = keys.end;
    int64_t seen_in_tile = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const int32_t count = seen.count(rows[r], keys);
      const Range columns = visible_columns(mask.rule(), rows[r], keys);
      ASSERT_EQ(columns.size(), count) << "row " << r << " tile " << step.tile;
      ASSERT_EQ(seen.count(rows[r], {keys.begin + columns.begin, keys.begin + columns.end}), count);
      covered[r] += count;
      seen_in_tile += count;
    }
    ASSERT_GT(seen_in_tile, 0) << "tile " << step.tile << " is visited in vain";
    const bool full = seen_in_tile == static_cast<int64_t>(rows.size()) * visit.tile;
    ASSERT_EQ(step.form, full ? Form::kFull : Form::kRow) << "tile " << step.tile;
    ASSERT_EQ(visit.rank(step.tile), i);
  }
  for (size_t r = 0; r < rows.size(); ++r) {
    ASSERT_EQ(covered[r], seen.count(rows[r])) << "row " << r << " misses keys";
  }
  ASSERT_EQ(visit.rank(visit.first_tile - 1), -1);
  ASSERT_EQ(visit.rank(visit.first_tile + visit.count()), -1);
}

TEST(interval, every_tile_shape_covers_the_mask_exactly_once) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    const SeenKeys seen(mask);
    for (const int32_t q_tile : kQueryTiles) {
      for (int32_t t = 0; t < tile_count(mask.len_q, q_tile); ++t) {
        const Range queries = tile_range(t, q_tile, mask.len_q);
        std::vector<int32_t> rows;
        for (int32_t q = queries.begin; q < queries.end; ++q) rows.push_back(q);
        for (const int32_t kv_tile : kKeyTiles) {
          for (const TileOrigin origin : kOrigins) {
            SCOPED_TRACE(testing::Message()
                         << "query tile " << t << " of " << q_tile << ", key tiles of " << kv_tile);
            const IntervalVisit visit = visit_keys(mask.rule(), queries, kv_tile, origin);
            ASSERT_NO_FATAL_FAILURE(check_rows(mask, seen, rows, visit));
          }
        }
      }
    }
  }
}

TEST(interval, packed_heads_share_the_visit_of_their_queries) {
  std::mt19937 random(12);
  for (const MaskCase& mask : random_masks(13, 60)) {
    SCOPED_TRACE(testing::Message() << mask);
    const SeenKeys seen(mask);
    const int32_t heads = std::vector<int32_t>{1, 3, 8, 16, 128}[static_cast<size_t>(pick(random, 0, 4))];
    const int64_t all_rows = int64_t{mask.len_q} * heads;
    for (const int32_t row_tile : {16, 64, 128}) {
      for (int64_t first = 0; first < all_rows; first += row_tile) {
        const int64_t last = first + row_tile < all_rows ? first + row_tile : all_rows;
        std::vector<int32_t> rows;
        for (int64_t r = first; r < last; ++r) rows.push_back(static_cast<int32_t>(r / heads));
        const IntervalVisit visit =
            visit_keys(mask.rule(), queries_of_rows(first, last, heads), 64, TileOrigin::kSequence);
        SCOPED_TRACE(testing::Message() << "rows from " << first << " of " << heads << " heads");
        ASSERT_NO_FATAL_FAILURE(check_rows(mask, seen, rows, visit));
      }
    }
  }
}

TEST(interval, tiles_start_where_the_origin_says) {
  const MaskRule rule = make_mask_rule(100, 300, true, 50, -1);
  const IntervalVisit aligned = visit_keys(rule, {64, 100}, 64, TileOrigin::kSequence);
  EXPECT_EQ(aligned.first_tile, 3);  // the first key needed is 214
  EXPECT_EQ(aligned.elements(3).begin, 192);
  EXPECT_EQ(aligned.length(), 300 - 192);
  const IntervalVisit own = visit_keys(rule, {64, 100}, 64, TileOrigin::kFirstNeeded);
  EXPECT_EQ(own.first_tile, 0);
  EXPECT_EQ(own.elements(0).begin, 214);
  EXPECT_EQ(own.length(), 300 - 214);
}

TEST(interval, at_most_three_segments_in_order) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    for (const int32_t q_tile : kQueryTiles) {
      for (int32_t t = 0; t < tile_count(mask.len_q, q_tile); ++t) {
        const IntervalVisit visit =
            visit_keys(mask.rule(), tile_range(t, q_tile, mask.len_q), 16, TileOrigin::kSequence);
        const Segment parts[] = {visit.segments.head(), visit.segments.body(), visit.segments.tail()};
        int32_t place = 0;
        for (const Segment& part : parts) {
          ASSERT_EQ(part.first, place);
          ASSERT_LE(part.first, part.last);
          for (; place < part.last; ++place) ASSERT_EQ(visit.at(place).form, part.form);
        }
        ASSERT_EQ(place, visit.count());
      }
    }
  }
}

TEST(interval, slices_recompose) {
  std::mt19937 random(14);
  for (const MaskCase& mask : all_masks()) {
    if (mask.len_q == 0) continue;
    SCOPED_TRACE(testing::Message() << mask);
    for (const TileOrigin origin : kOrigins) {
      const int32_t begin = pick(random, 0, mask.len_q - 1);
      const Range queries{begin, pick(random, begin + 1, mask.len_q)};
      const IntervalVisit visit = visit_keys(mask.rule(), queries, 16, origin);
      int32_t place = 0;
      int32_t length = 0;
      while (place < visit.count()) {
        const int32_t end = pick(random, place, visit.count());
        const IntervalVisit part = visit.slice(place, end);
        ASSERT_EQ(part.count(), end - place);
        length += part.length();
        for (int32_t i = 0; i < part.count(); ++i, ++place) {
          ASSERT_EQ(part.at(i).tile, visit.at(place).tile);
          ASSERT_EQ(part.at(i).form, visit.at(place).form);
          ASSERT_EQ(part.elements(part.at(i).tile).begin, visit.elements(visit.at(place).tile).begin);
          ASSERT_EQ(part.elements(part.at(i).tile).end, visit.elements(visit.at(place).tile).end);
        }
      }
      ASSERT_EQ(length, visit.length());
      ASSERT_EQ(visit.slice(-5, visit.count() + 5).count(), visit.count());
      ASSERT_EQ(visit.slice(visit.count() + 1, visit.count() + 9).count(), 0);
      ASSERT_EQ(visit.slice(2, 1).count(), 0);
    }
  }
}

TEST(interval, a_slice_of_a_slice_is_a_slice) {
  const MaskRule rule = make_mask_rule(1, 400, false, -1, -1);
  const IntervalVisit visit = visit_keys(rule, {0, 1}, 16, TileOrigin::kSequence);
  ASSERT_EQ(visit.count(), 25);
  const IntervalVisit inner = visit.slice(5, 20).slice(3, 9);
  ASSERT_EQ(inner.count(), 6);
  EXPECT_EQ(inner.at(0).tile, 8);
  EXPECT_EQ(inner.at(5).tile, 13);
  EXPECT_EQ(inner.rank(8), 0);
  EXPECT_EQ(inner.rank(14), -1);
  EXPECT_EQ(inner.length(), 96);
}

TEST(interval, the_cursor_looks_one_step_ahead) {
  for (const MaskCase& mask : random_masks(15, 100)) {
    SCOPED_TRACE(testing::Message() << mask);
    const IntervalVisit visit = visit_keys(mask.rule(), {0, mask.len_q}, 16, TileOrigin::kFirstNeeded);
    int32_t place = 0;
    for (Cursor<IntervalVisit> cursor(visit); !cursor.done(); cursor.advance(), ++place) {
      ASSERT_EQ(cursor.place(), place);
      ASSERT_EQ(cursor.current().tile, visit.at(place).tile);
      ASSERT_EQ(cursor.current().form, visit.at(place).form);
      ASSERT_EQ(cursor.has_next(), place + 1 < visit.count());
      if (!cursor.has_next()) continue;
      ASSERT_EQ(cursor.next().tile, visit.at(place + 1).tile);
      ASSERT_EQ(cursor.next().form, visit.at(place + 1).form);
    }
    ASSERT_EQ(place, visit.count());
  }
}

TEST(interval, forward_and_reverse_visit_the_same_pairs_of_tiles) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    const MaskRule rule = mask.rule();
    for (const int32_t q_tile : {16, 64, 128}) {
      for (const int32_t kv_tile : {16, 64, 128}) {
        const int32_t q_tiles = tile_count(mask.len_q, q_tile);
        for (int32_t k = 0; k < tile_count(mask.len_k, kv_tile); ++k) {
          const IntervalVisit reverse =
              visit_queries(rule, {k * kv_tile, (k + 1) * kv_tile}, q_tile, TileOrigin::kSequence);
          for (int32_t q = 0; q < q_tiles; ++q) {
            const Range queries = tile_range(q, q_tile, mask.len_q);
            const IntervalVisit forward = visit_keys(rule, queries, kv_tile, TileOrigin::kSequence);
            const int32_t to = forward.rank(k);
            const int32_t from = reverse.rank(q);
            ASSERT_EQ(to >= 0, from >= 0) << "query tile " << q << " key tile " << k;
            if (to < 0) continue;
            // A short tile of queries is never full when it is the one that is walked over.
            const bool full = forward.at(to).form == Form::kFull && queries.size() == q_tile;
            ASSERT_EQ(reverse.at(from).form, full ? Form::kFull : Form::kRow);
          }
        }
      }
    }
  }
}

TEST(interval, the_longest_sequences_work) {
  const MaskRule rule = make_mask_rule(kLongest, kLongest, true, -1, -1);
  const Range last = tile_range(tile_count(kLongest, 128) - 1, 128, kLongest);
  EXPECT_EQ(last.size(), 127);
  EXPECT_EQ(last.end, kLongest);
  const IntervalVisit visit = visit_keys(rule, last, 16, TileOrigin::kSequence);
  EXPECT_EQ(visit.count(), 1 << 27);
  EXPECT_EQ(visit.segments.body().last, last.begin / 16);
  EXPECT_EQ(visit.elements((1 << 27) - 1).end, kLongest);
  EXPECT_EQ(visit.length(), kLongest);
  const Range packed = queries_of_rows(int64_t{kLongest} * 128 - 64, int64_t{kLongest} * 128, 128);
  EXPECT_EQ(packed.begin, kLongest - 1);
  EXPECT_EQ(packed.end, kLongest);
  EXPECT_TRUE(queries_of_rows(7, 7, 3).empty());
}

}  // namespace
}  // namespace tilewise::visit
