// List visits against element predicate and selection: what is selected and visible is covered exactly once,
// whatever the order, repeats and pads of the list; the inverted selection gives the same pairs of tiles and
// ranks.
#include "visit/list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "tests/property/mask_cases.h"

namespace tilewise::visit {
namespace {

struct Shape {
  int32_t q_block;
  int32_t kv_block;
  int32_t q_tile;
  int32_t kv_tile;
};

constexpr Shape kShapes[] = {
    {64, 64, 16, 16},   {64, 64, 64, 64},     {64, 128, 1, 64},   {128, 128, 128, 128}, {128, 128, 64, 64},
    {256, 64, 128, 16}, {256, 128, 128, 128}, {192, 128, 64, 16}, {128, 256, 128, 256}, {64, 64, 2, 16}};

Range query_block(int32_t r, const Shape& shape, const MaskCase& mask) {
  return tile_range(r, shape.q_block, mask.len_q);
}

// The selection of every query block, normalised, with the raw ids that it came from.
struct Selection {
  int32_t width = 0;
  int32_t num_blocks = 0;
  std::vector<std::vector<int32_t>> ids;
  std::vector<int32_t> blocks;
  std::vector<int32_t> counts;

  bool has(int32_t row, int32_t block) const {
    return std::find(ids[static_cast<size_t>(row)].begin(), ids[static_cast<size_t>(row)].end(), block) !=
           ids[static_cast<size_t>(row)].end();
  }
  const int32_t* row(int32_t r) const {
    return blocks.data() + static_cast<size_t>(r) * static_cast<size_t>(width);
  }
  int32_t rows() const { return static_cast<int32_t>(ids.size()); }
};

void normalise(const MaskCase& mask, const Shape& shape, Selection& selection) {
  selection.num_blocks = tile_count(mask.len_k, shape.kv_block);
  selection.blocks.assign(selection.ids.size() * static_cast<size_t>(selection.width), -7);
  selection.counts.clear();
  for (int32_t r = 0; r < selection.rows(); ++r) {
    const Range allowed =
        blocks_of(keys_seen_by_any(mask.rule(), query_block(r, shape, mask)), shape.kv_block);
    selection.counts.push_back(select_blocks(
        selection.ids[static_cast<size_t>(r)].data(), selection.width, allowed,
        selection.blocks.data() + static_cast<size_t>(r) * static_cast<size_t>(selection.width)));
  }
}

Selection random_selection(std::mt19937& random, const MaskCase& mask, const Shape& shape) {
  Selection selection;
  selection.width = pick(random, 0, 12);
  const int32_t num_blocks = tile_count(mask.len_k, shape.kv_block);
  for (int32_t r = 0; r < tile_count(mask.len_q, shape.q_block); ++r) {
    std::vector<int32_t> ids;
    for (int32_t j = 0; j < selection.width; ++j) {
      const int32_t odd[] = {-1, -2147483647 - 1, 2147483647, num_blocks, num_blocks + 1};
      ids.push_back(pick(random, 0, 4) == 0 ? odd[pick(random, 0, 4)] : pick(random, 0, num_blocks));
    }
    selection.ids.push_back(ids);
  }
  normalise(mask, shape, selection);
  return selection;
}

ListVisit visit_of(const MaskCase& mask, const Shape& shape, const Selection& selection, Range queries) {
  const int32_t r = queries.begin / shape.q_block;
  return make_list(selection.row(r), selection.counts[static_cast<size_t>(r)], shape.kv_block,
                   visit_keys(mask.rule(), queries, shape.kv_tile, TileOrigin::kSequence));
}

// Calls check(mask, shape, selection) for many of each.
template <class Check>
void for_all(uint32_t seed, const Check& check) {
  std::mt19937 random(seed);
  std::vector<MaskCase> masks = chosen_masks();
  for (const MaskCase& mask : random_masks(seed, 150)) masks.push_back(mask);
  for (const MaskCase& mask : masks) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << mask << " q_block " << shape.q_block << " kv_block " << shape.kv_block << " tiles "
                   << shape.q_tile << " x " << shape.kv_tile);
      const Selection selection = random_selection(random, mask, shape);
      check(mask, shape, selection);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(list, covers_what_is_selected_and_visible_exactly_once) {
  int64_t visited = 0;
  for_all(21, [&](const MaskCase& mask, const Shape& shape, const Selection& selection) {
    const SeenKeys seen(mask);
    for (int32_t t = 0; t < tile_count(mask.len_q, shape.q_tile); ++t) {
      const Range queries = tile_range(t, shape.q_tile, mask.len_q);
      const int32_t r = queries.begin / shape.q_block;
      const ListVisit visit = visit_of(mask, shape, selection, queries);
      std::set<int32_t> tiles;
      for (int32_t i = 0; i < visit.count(); ++i) {
        const Step step = visit.at(i);
        ASSERT_TRUE(tiles.empty() || *tiles.rbegin() < step.tile) << "tiles must ascend";
        tiles.insert(step.tile);
        ASSERT_TRUE(selection.has(r, step.tile * shape.kv_tile / shape.kv_block)) << "tile " << step.tile;
        ASSERT_EQ(visit.rank(step.tile), i);
        const Range keys = visit.elements(step.tile);
        ASSERT_EQ(keys.begin, step.tile * shape.kv_tile);
        int64_t seen_in_tile = 0;
        for (int32_t q = queries.begin; q < queries.end; ++q) seen_in_tile += seen.count(q, keys);
        ASSERT_GT(seen_in_tile, 0) << "tile " << step.tile << " is visited in vain";
        const bool full = seen_in_tile == int64_t{queries.size()} * shape.kv_tile;
        ASSERT_EQ(step.form, full ? Form::kFull : Form::kRow) << "tile " << step.tile;
        ++visited;
      }
      for (int32_t k = 0; k < tile_count(mask.len_k, shape.kv_tile); ++k) {
        if (tiles.count(k) > 0) continue;
        ASSERT_EQ(visit.rank(k), -1);
        if (!selection.has(r, k * shape.kv_tile / shape.kv_block)) continue;
        for (int32_t q = queries.begin; q < queries.end; ++q) {
          ASSERT_EQ(seen.count(q, tile_range(k, shape.kv_tile, mask.len_k)), 0)
              << "tile " << k << " is missed";
        }
      }
    }
  });
  EXPECT_GT(visited, 100000);
}

TEST(list, every_block_selected_is_the_interval) {
  for (const MaskCase& mask : random_masks(22, 200)) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << mask);
      Selection selection;
      selection.width = tile_count(mask.len_k, shape.kv_block);
      for (int32_t r = 0; r < tile_count(mask.len_q, shape.q_block); ++r) {
        std::vector<int32_t> ids;
        for (int32_t b = 0; b < selection.width; ++b) ids.push_back(b);
        selection.ids.push_back(ids);
      }
      normalise(mask, shape, selection);
      for (int32_t t = 0; t < tile_count(mask.len_q, shape.q_tile); ++t) {
        const Range queries = tile_range(t, shape.q_tile, mask.len_q);
        const ListVisit list = visit_of(mask, shape, selection, queries);
        const IntervalVisit interval = visit_keys(mask.rule(), queries, shape.kv_tile, TileOrigin::kSequence);
        ASSERT_EQ(list.count(), interval.count());
        for (int32_t i = 0; i < list.count(); ++i) {
          ASSERT_EQ(list.at(i).tile, interval.at(i).tile);
          ASSERT_EQ(list.at(i).form, interval.at(i).form);
          ASSERT_EQ(list.elements(list.at(i).tile).end, interval.elements(interval.at(i).tile).end);
        }
      }
    }
  }
}

TEST(list, order_repeats_and_pads_change_nothing) {
  std::mt19937 random(23);
  for (int32_t trial = 0; trial < 2000; ++trial) {
    std::vector<int32_t> ids;
    for (int32_t i = pick(random, 0, 40); i > 0; --i) ids.push_back(pick(random, -3, 60));
    const Range allowed{pick(random, 0, 10), pick(random, 0, 60)};
    std::set<int32_t> expected;
    for (const int32_t id : ids) {
      if (id >= allowed.begin && id < allowed.end) expected.insert(id);
    }
    std::vector<int32_t> changed = ids;
    for (const int32_t id : ids) changed.push_back(pick(random, 0, 1) == 0 ? id : -1);
    std::shuffle(changed.begin(), changed.end(), random);
    for (std::vector<int32_t>* list : {&ids, &changed}) {
      std::vector<int32_t> blocks(list->size() + 1, -7);
      const int32_t n =
          select_blocks(list->data(), static_cast<int32_t>(list->size()), allowed, blocks.data());
      ASSERT_EQ(std::vector<int32_t>(blocks.begin(), blocks.begin() + n),
                std::vector<int32_t>(expected.begin(), expected.end()));
      ASSERT_EQ(blocks.back(), -7);
      const int32_t in_place =
          select_blocks(list->data(), static_cast<int32_t>(list->size()), allowed, list->data());
      ASSERT_TRUE(in_place == n && std::equal(blocks.begin(), blocks.begin() + n, list->begin()));
    }
  }
}

TEST(list, sorts_as_the_standard_library_does) {
  std::mt19937 random(24);
  for (int32_t n = 0; n < 400; ++n) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i < n; ++i) values.push_back(pick(random, -n, n));
    std::vector<int32_t> expected = values;
    std::sort(expected.begin(), expected.end());
    sort_ascending(values.data(), n);
    ASSERT_EQ(values, expected);
  }
}

TEST(list, slices_recompose) {
  std::mt19937 random(25);
  for_all(26, [&](const MaskCase& mask, const Shape& shape, const Selection& selection) {
    for (int32_t t = 0; t < tile_count(mask.len_q, shape.q_tile); t += 3) {
      const ListVisit visit = visit_of(mask, shape, selection, tile_range(t, shape.q_tile, mask.len_q));
      ASSERT_EQ(ceil_div(visit.length(), shape.kv_tile), visit.count());
      int32_t place = 0;
      while (place < visit.count()) {
        const int32_t end = pick(random, place, visit.count());
        const ListVisit part = visit.slice(place, end);
        ASSERT_EQ(part.count(), end - place);
        for (int32_t i = 0; i < part.count(); ++i, ++place) {
          ASSERT_EQ(part.at(i).tile, visit.at(place).tile);
          ASSERT_EQ(part.at(i).form, visit.at(place).form);
          ASSERT_EQ(part.rank(part.at(i).tile), i);
        }
        if (part.count() > 0 && end < visit.count()) {
          ASSERT_EQ(part.rank(visit.at(end).tile), -1);
        }
      }
    }
  });
}

TEST(list, the_cursor_walks_lists_too) {
  const int32_t blocks[] = {0, 2, 3};
  const MaskRule rule = make_mask_rule(512, 512, true, -1, -1);
  const ListVisit visit = make_list(blocks, 3, 128, visit_keys(rule, {448, 512}, 64, TileOrigin::kSequence));
  std::vector<int32_t> tiles;
  std::vector<Form> forms;
  for (Cursor<ListVisit> cursor(visit); !cursor.done(); cursor.advance()) {
    tiles.push_back(cursor.current().tile);
    forms.push_back(cursor.current().form);
    if (cursor.has_next()) {
      EXPECT_EQ(cursor.next().tile, visit.at(cursor.place() + 1).tile);
    }
  }
  EXPECT_EQ(tiles, (std::vector<int32_t>{0, 1, 4, 5, 6, 7}));
  const Form full = Form::kFull;
  EXPECT_EQ(forms, (std::vector<Form>{full, full, full, full, full, Form::kRow}));
}

template <class Offset>
void check_inverse(const Selection& selection) {
  int64_t total = 0;
  for (const int32_t count : selection.counts) total += count;
  const size_t size = static_cast<size_t>(total);
  std::vector<Offset> row_ptr(static_cast<size_t>(selection.num_blocks) + 1, -1);
  std::vector<int32_t> q_blocks(size, -1);
  std::vector<int32_t> ranks(size, -1);
  ASSERT_EQ(
      invert_selection(selection.blocks.data(), selection.counts.data(), selection.rows(), selection.width,
                       selection.num_blocks, row_ptr.data(), q_blocks.data(), ranks.data()),
      total);
  ASSERT_EQ(row_ptr.front(), 0);
  ASSERT_EQ(row_ptr.back(), total);
  for (int32_t b = 0; b < selection.num_blocks; ++b) {
    Offset entry = row_ptr[static_cast<size_t>(b)];
    for (int32_t r = 0; r < selection.rows(); ++r) {
      for (int32_t j = 0; j < selection.counts[static_cast<size_t>(r)]; ++j) {
        if (selection.row(r)[j] != b) continue;
        ASSERT_LT(entry, row_ptr[static_cast<size_t>(b) + 1]);
        ASSERT_EQ(q_blocks[static_cast<size_t>(entry)], r);
        ASSERT_EQ(ranks[static_cast<size_t>(entry)], j);
        ++entry;
      }
    }
    ASSERT_EQ(entry, row_ptr[static_cast<size_t>(b) + 1]);
  }
  std::vector<int32_t> without_ranks(size, -1);
  invert_selection(selection.blocks.data(), selection.counts.data(), selection.rows(), selection.width,
                   selection.num_blocks, row_ptr.data(), without_ranks.data(),
                   static_cast<int32_t*>(nullptr));
  ASSERT_EQ(without_ranks, q_blocks);
}

TEST(list, the_inverse_holds_each_pair_once_in_order) {
  for_all(27, [](const MaskCase&, const Shape&, const Selection& selection) {
    ASSERT_NO_FATAL_FAILURE(check_inverse<int32_t>(selection));
    ASSERT_NO_FATAL_FAILURE(check_inverse<int64_t>(selection));
  });
}

TEST(list, forward_and_reverse_visit_the_same_pairs_of_tiles_with_the_same_rank) {
  for_all(28, [](const MaskCase& mask, const Shape& shape, const Selection& selection) {
    std::vector<int64_t> row_ptr(static_cast<size_t>(selection.num_blocks) + 1);
    std::vector<int32_t> q_blocks(selection.blocks.size());
    std::vector<int32_t> ranks(selection.blocks.size());
    invert_selection(selection.blocks.data(), selection.counts.data(), selection.rows(), selection.width,
                     selection.num_blocks, row_ptr.data(), q_blocks.data(), ranks.data());
    const int32_t q_tiles = tile_count(mask.len_q, shape.q_tile);
    for (int32_t k = 0; k < tile_count(mask.len_k, shape.kv_tile); ++k) {
      const int32_t block = k * shape.kv_tile / shape.kv_block;
      const int64_t begin = row_ptr[static_cast<size_t>(block)];
      const int32_t n = static_cast<int32_t>(row_ptr[static_cast<size_t>(block) + 1] - begin);
      const Range keys{k * shape.kv_tile, (k + 1) * shape.kv_tile};
      const ListVisit reverse =
          make_list(q_blocks.data() + begin, n, shape.q_block,
                    visit_queries(mask.rule(), keys, shape.q_tile, TileOrigin::kSequence));
      for (int32_t q = 0; q < q_tiles; ++q) {
        const Range queries = tile_range(q, shape.q_tile, mask.len_q);
        const ListVisit forward = visit_of(mask, shape, selection, queries);
        const int32_t to = forward.rank(k);
        const int32_t from = reverse.rank(q);
        ASSERT_EQ(to >= 0, from >= 0) << "query tile " << q << " key tile " << k;
        if (to < 0) continue;
        const bool full = forward.at(to).form == Form::kFull && queries.size() == shape.q_tile;
        ASSERT_EQ(reverse.at(from).form, full ? Form::kFull : Form::kRow);
        // The place of the query block in the inverse leads to the stored rank.
        const int64_t entry =
            std::find(q_blocks.begin() + begin, q_blocks.begin() + begin + n, queries.begin / shape.q_block) -
            q_blocks.begin();
        ASSERT_EQ(forward.rank(k, ranks[static_cast<size_t>(entry)]), to);
      }
    }
  });
}

TEST(list, an_empty_selection_is_an_empty_visit) {
  const MaskRule rule = make_mask_rule(128, 128, false, -1, -1);
  const IntervalVisit interval = visit_keys(rule, {0, 64}, 64, TileOrigin::kSequence);
  const ListVisit visit = make_list(nullptr, 0, 128, interval);
  EXPECT_EQ(visit.count(), 0);
  EXPECT_EQ(visit.length(), 0);
  EXPECT_EQ(visit.rank(0), -1);
  EXPECT_EQ(visit.slice(0, 1).count(), 0);
  EXPECT_EQ(select_blocks(nullptr, 0, {0, 2}, nullptr), 0);
  EXPECT_TRUE(blocks_of({}, 128).empty());
  int64_t row_ptr[3] = {-1, -1, -1};
  EXPECT_EQ(invert_selection(nullptr, nullptr, 0, 0, 2, row_ptr, nullptr, nullptr), 0);
  EXPECT_EQ(row_ptr[2], 0);
}

TEST(list, the_longest_sequences_work) {
  const MaskRule rule = make_mask_rule(kLongest, kLongest, false, -1, -1);
  const int32_t last_block = tile_count(kLongest, 64) - 1;
  const int32_t ids[] = {last_block, 0, last_block + 1, last_block};
  int32_t blocks[4];
  const Range queries{kLongest - 10, kLongest};
  ASSERT_EQ(select_blocks(ids, 4, blocks_of(keys_seen_by_any(rule, queries), 64), blocks), 2);
  const ListVisit visit = make_list(blocks, 2, 64, visit_keys(rule, queries, 16, TileOrigin::kSequence));
  ASSERT_EQ(visit.count(), 8);
  EXPECT_EQ(visit.at(7).tile, (1 << 27) - 1);
  EXPECT_EQ(visit.elements(visit.at(7).tile).end, kLongest);
  EXPECT_EQ(visit.at(7).form, Form::kRow);
  EXPECT_EQ(visit.at(6).form, Form::kFull);
  EXPECT_EQ(visit.rank((1 << 27) - 1), 7);
}

}  // namespace
}  // namespace tilewise::visit
