// Segments of a row and their distribution: everything is done once, in order, evenly, and a row's cut does
// not know of its neighbours.
#include "visit/work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/property/mask_cases.h"
#include "visit/list.h"

namespace tilewise::visit {
namespace {

constexpr int32_t kTiles[] = {16, 64, 128, 256};

SegmentRule tile_by_tile(int32_t tile) { return {.tile = tile, .min_keys = tile, .max_segments = kLongest}; }

TEST(work, segments_cover_a_row_once_and_have_the_agreed_length) {
  std::mt19937 random(31);
  std::vector<int32_t> lengths = {0, 1, 511, 512, 513, 16384, 16385, 131072, kLongest - 1, kLongest};
  for (int32_t i = 0; i < 2000; ++i) lengths.push_back(pick(random, 0, i < 1000 ? 100000 : kLongest));
  for (const int32_t length : lengths) {
    for (const int32_t tile : kTiles) {
      SCOPED_TRACE(testing::Message() << "length " << length << " tile " << tile);
      const RowSegments row = segments_of(length, {.tile = tile});
      // Spelled out once more: the larger of 512 and a 32nd of the row in whole tiles.
      const int64_t part = (int64_t{length} + 31) / 32;
      ASSERT_EQ(row.step, std::max<int64_t>(512, (part + tile - 1) / tile * tile));
      ASSERT_GE(row.count, 1);
      ASSERT_LE(row.count, 32);
      int32_t end = 0;
      for (int32_t s = 0; s < row.count; ++s) {
        ASSERT_EQ(row.keys(s).begin, end);
        ASSERT_TRUE(length == 0 || !row.keys(s).empty());
        end = row.keys(s).end;
      }
      ASSERT_EQ(end, length);
    }
  }
}

TEST(work, segments_are_whole_tiles_of_any_size) {
  for (const int32_t tile : {1, 3, 48, 96, 192, 320, 1000}) {
    for (const int32_t length : {0, 1, 500, 513, 99999, kLongest}) {
      const RowSegments row = segments_of(length, {.tile = tile});
      EXPECT_EQ(row.step % tile, 0);
      EXPECT_GE(row.step, 512);
      EXPECT_LE(row.count, 32);
      EXPECT_EQ(row.keys(row.count - 1).end, length);
    }
  }
  EXPECT_EQ(segments_of(1000, tile_by_tile(64)).count, 16);
  EXPECT_EQ(segments_of(1000, tile_by_tile(64)).keys(15).size(), 40);
}

template <class Visit>
void check_slices(const Visit& visit) {
  const RowSegments row =
      segments_of(visit.length(), {.tile = visit.tile, .min_keys = 32, .max_segments = 5});
  int32_t place = 0;
  for (int32_t s = 0; s < row.count; ++s) {
    const Visit part = slice_segments(visit, row, s, s + 1);
    ASSERT_EQ(part.length(), row.keys(s).size());
    for (int32_t i = 0; i < part.count(); ++i, ++place) {
      ASSERT_EQ(part.at(i).tile, visit.at(place).tile);
      ASSERT_EQ(part.at(i).form, visit.at(place).form);
    }
  }
  ASSERT_EQ(place, visit.count());
  ASSERT_EQ(slice_segments(visit, row, 0, row.count).count(), visit.count());
  ASSERT_EQ(slice_segments(visit, row, row.count, row.count).count(), 0);
}

TEST(work, the_segments_of_a_visit_recompose) {
  std::mt19937 random(32);
  for (const MaskCase& mask : random_masks(33, 400)) {
    if (mask.len_q == 0) continue;
    SCOPED_TRACE(testing::Message() << mask);
    const int32_t begin = pick(random, 0, mask.len_q - 1);
    const Range queries{begin, pick(random, begin + 1, mask.len_q)};
    for (const TileOrigin origin : {TileOrigin::kSequence, TileOrigin::kFirstNeeded}) {
      ASSERT_NO_FATAL_FAILURE(check_slices(visit_keys(mask.rule(), queries, 16, origin)));
    }
    // All blocks but those with a number that 3 divides. Only the last tile of a list can be short.
    std::vector<int32_t> blocks;
    for (int32_t b = 0; b < tile_count(mask.len_k, 64); ++b) {
      if (b % 3 != 0) blocks.push_back(b);
    }
    const ListVisit list = make_list(blocks.data(), static_cast<int32_t>(blocks.size()), 64,
                                     visit_keys(mask.rule(), queries, 16, TileOrigin::kSequence));
    const RowSegments row = segments_of(list.length(), {.tile = 16, .min_keys = 32, .max_segments = 5});
    int32_t place = 0;
    for (int32_t s = 0; s < row.count; ++s) {
      const ListVisit part = slice_segments(list, row, s, s + 1);
      for (int32_t i = 0; i < part.count(); ++i, ++place) ASSERT_EQ(part.at(i).tile, list.at(place).tile);
    }
    ASSERT_EQ(place, list.count());
  }
}

TEST(work, a_cut_at_the_first_key_knows_the_row_alone) {
  // One decode row with a window: the same keys further back in a longer sequence are cut alike.
  for (const int32_t shift : {0, 1, 77, 5000}) {
    const MaskRule rule = make_mask_rule(1, 40000 + shift, true, 29999, 0);
    const IntervalVisit visit = visit_keys(rule, {0, 1}, 64, TileOrigin::kFirstNeeded);
    ASSERT_EQ(visit.length(), 30000);
    const RowSegments row = segments_of(visit.length(), {.tile = 64});
    EXPECT_EQ(row.step, 960);
    EXPECT_EQ(row.count, 32);
    const IntervalVisit second = slice_segments(visit, row, 1, 2);
    EXPECT_EQ(second.elements(second.at(0).tile).begin, 10000 + shift + 960);
    EXPECT_EQ(second.length(), 960);
  }
}

struct Assignment {
  std::vector<WorkItem> items;
  std::vector<int64_t> worker_begin;
};

Assignment assign(const std::vector<int32_t>& lengths, const SegmentRule& rule, int32_t row_cost,
                  int32_t workers) {
  const int32_t rows = static_cast<int32_t>(lengths.size());
  Assignment result;
  result.items.resize(static_cast<size_t>(max_work_items(rows, workers)));
  result.worker_begin.assign(static_cast<size_t>(workers) + 1, -1);
  const int64_t n = assign_work(lengths.data(), rows, rule, row_cost, workers, result.items.data(),
                                result.worker_begin.data());
  EXPECT_LE(n, max_work_items(rows, workers));
  result.items.resize(static_cast<size_t>(n));
  return result;
}

void check_assignment(const std::vector<int32_t>& lengths, const SegmentRule& rule, int32_t row_cost,
                      int32_t workers) {
  SCOPED_TRACE(testing::Message() << lengths.size() << " rows, tile " << rule.tile << ", min_keys "
                                  << rule.min_keys << ", row_cost " << row_cost << ", " << workers
                                  << " workers");
  const Assignment work = assign(lengths, rule, row_cost, workers);
  // In order, each segment once.
  int32_t row = 0;
  int32_t segment = 0;
  for (const WorkItem& item : work.items) {
    ASSERT_EQ(item.row_tile, row);
    ASSERT_EQ(item.first_segment, segment);
    const int32_t count = segments_of(lengths[static_cast<size_t>(row)], rule).count;
    ASSERT_GT(item.last_segment, item.first_segment);
    ASSERT_LE(item.last_segment, count);
    segment = item.last_segment;
    if (segment == count) {
      segment = 0;
      ++row;
    }
  }
  ASSERT_EQ(row, static_cast<int32_t>(lengths.size()));
  // Evenly.
  int64_t total = 0;
  int64_t largest = 0;
  for (const int32_t length : lengths) {
    total += row_cost + ceil_div(length, rule.tile);
    largest =
        std::max(largest, ceil_div(std::min<int64_t>(length, segments_of(length, rule).step), rule.tile));
  }
  const int64_t share = ceil_div(total, workers);
  ASSERT_EQ(work.worker_begin.front(), 0);
  ASSERT_EQ(work.worker_begin.back(), static_cast<int64_t>(work.items.size()));
  for (int32_t w = 0; w < workers; ++w) {
    int64_t load = 0;
    ASSERT_LE(work.worker_begin[static_cast<size_t>(w)], work.worker_begin[static_cast<size_t>(w) + 1]);
    int32_t last_row = -1;
    for (int64_t i = work.worker_begin[static_cast<size_t>(w)];
         i < work.worker_begin[static_cast<size_t>(w) + 1]; ++i) {
      const WorkItem& item = work.items[static_cast<size_t>(i)];
      ASSERT_NE(item.row_tile, last_row) << "one worker has two items of a row";
      last_row = item.row_tile;
      const RowSegments cut = segments_of(lengths[static_cast<size_t>(item.row_tile)], rule);
      const int64_t keys = int64_t{cut.keys(item.last_segment - 1).end} - cut.keys(item.first_segment).begin;
      load += ceil_div(keys, rule.tile) + (item.first_segment == 0 ? row_cost : 0);
    }
    ASSERT_LE(load, share + largest + row_cost) << "worker " << w;
  }
}

TEST(work, all_segments_are_assigned_once_in_order_and_evenly) {
  std::mt19937 random(34);
  for (int32_t trial = 0; trial < 2000; ++trial) {
    std::vector<int32_t> lengths;
    const int32_t longest =
        std::vector<int32_t>{0, 300, 5000, 200000}[static_cast<size_t>(pick(random, 0, 3))];
    for (int32_t i = pick(random, 0, 60); i > 0; --i) {
      lengths.push_back(pick(random, 0, 4) == 0 ? 0 : pick(random, 0, longest));
    }
    const int32_t tile = kTiles[pick(random, 0, 3)];
    const SegmentRule rule = pick(random, 0, 1) == 0 ? SegmentRule{.tile = tile} : tile_by_tile(tile);
    ASSERT_NO_FATAL_FAILURE(check_assignment(lengths, rule, pick(random, 0, 5), pick(random, 1, 200)));
  }
}

TEST(work, equal_rows_get_equal_shares) {
  // 128 rows of 4096 keys on 132 workers, tile by tile: 62.06 tiles each.
  const std::vector<int32_t> lengths(128, 4096);
  const Assignment work = assign(lengths, tile_by_tile(64), 0, 132);
  int32_t most = 0;
  for (size_t w = 0; w < 132; ++w) {
    int32_t tiles = 0;
    for (int64_t i = work.worker_begin[w]; i < work.worker_begin[w + 1]; ++i) {
      tiles +=
          work.items[static_cast<size_t>(i)].last_segment - work.items[static_cast<size_t>(i)].first_segment;
    }
    most = std::max(most, tiles);
  }
  EXPECT_EQ(most, 63);
}

TEST(work, one_long_row_is_spread_over_all_workers) {
  const Assignment work = assign({65536}, tile_by_tile(64), 1, 128);
  EXPECT_EQ(work.items.size(), 128U);
  for (size_t w = 0; w < 128; ++w) EXPECT_EQ(work.worker_begin[w + 1] - work.worker_begin[w], 1);
}

TEST(work, totals_past_32_bits_work) {
  const std::vector<int32_t> lengths(300, kLongest);
  check_assignment(lengths, {.tile = 16}, 1, 7);
  check_assignment(lengths, tile_by_tile(16), kLongest, 1000);
}

TEST(work, no_rows_is_no_work) {
  const Assignment work = assign({}, {.tile = 64}, 1, 5);
  EXPECT_TRUE(work.items.empty());
  EXPECT_EQ(work.worker_begin, std::vector<int64_t>(6, 0));
}

}  // namespace
}  // namespace tilewise::visit
