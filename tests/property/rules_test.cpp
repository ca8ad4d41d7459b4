// Mask rules against the element predicate: the same keys, monotone, and the same keys seen from the other
// side.
#include "visit/rules.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/property/mask_cases.h"

namespace tilewise::visit {
namespace {

std::vector<MaskCase> all_masks() {
  std::vector<MaskCase> masks = chosen_masks();
  for (const MaskCase& mask : random_masks(1, 300)) masks.push_back(mask);
  return masks;
}

TEST(rules, a_query_sees_exactly_the_keys_of_the_predicate) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    const MaskRule rule = mask.rule();
    for (int32_t q = 0; q < mask.len_q; ++q) {
      const Range keys = rule.keys(q);
      ASSERT_EQ(keys.begin, rule.lo(q));
      ASSERT_EQ(keys.end, rule.hi(q));
      for (int32_t k = 0; k < mask.len_k; ++k) {
        ASSERT_EQ(k >= keys.begin && k < keys.end, mask.sees(q, k)) << "query " << q << " key " << k;
      }
    }
  }
}

TEST(rules, limits_lie_in_the_sequence_and_never_decrease) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    const MaskRule rule = mask.rule();
    int32_t last_lo = 0;
    int32_t last_hi = 0;
    for (int32_t q = 0; q < mask.len_q; ++q) {
      ASSERT_LE(last_lo, rule.lo(q)) << "query " << q;
      ASSERT_LE(last_hi, rule.hi(q)) << "query " << q;
      ASSERT_LE(rule.lo(q), rule.hi(q)) << "query " << q;
      ASSERT_LE(rule.hi(q), mask.len_k) << "query " << q;
      last_lo = rule.lo(q);
      last_hi = rule.hi(q);
    }
  }
}

TEST(rules, a_range_of_queries_sees_what_its_queries_see) {
  std::mt19937 random(2);
  for (const MaskCase& mask : all_masks()) {
    if (mask.len_q == 0) continue;
    SCOPED_TRACE(testing::Message() << mask);
    for (int32_t trial = 0; trial < 20; ++trial) {
      const int32_t begin = pick(random, 0, mask.len_q - 1);
      const Range queries{begin, pick(random, begin + 1, mask.len_q)};
      const Range any = keys_seen_by_any(mask.rule(), queries);
      const Range all = keys_seen_by_all(mask.rule(), queries);
      for (int32_t k = 0; k < mask.len_k; ++k) {
        int32_t seen = 0;
        for (int32_t q = queries.begin; q < queries.end; ++q) seen += mask.sees(q, k) ? 1 : 0;
        ASSERT_EQ(k >= any.begin && k < any.end, seen > 0) << "key " << k;
        ASSERT_EQ(k >= all.begin && k < all.end, seen == queries.size()) << "key " << k;
      }
    }
  }
}

TEST(rules, the_reverse_agrees) {
  std::mt19937 random(3);
  for (const MaskCase& mask : all_masks()) {
    if (mask.len_k == 0) continue;
    SCOPED_TRACE(testing::Message() << mask);
    const SeenKeys seen(mask);
    for (int32_t trial = 0; trial < 20; ++trial) {
      const int32_t begin = pick(random, 0, mask.len_k - 1);
      const Range keys{begin, pick(random, begin + 1, mask.len_k)};
      const Range any = queries_that_see_any(mask.rule(), keys);
      const Range all = queries_that_see_all(mask.rule(), keys);
      for (int32_t q = 0; q < mask.len_q; ++q) {
        const int32_t count = seen.count(q, keys);
        ASSERT_EQ(q >= any.begin && q < any.end, count > 0) << "query " << q << " keys from " << begin;
        ASSERT_EQ(q >= all.begin && q < all.end, count == keys.size())
            << "query " << q << " keys from " << begin;
      }
    }
  }
}

TEST(rules, keys_past_the_sequence_are_seen_by_nobody) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    const MaskRule rule = mask.rule();
    EXPECT_TRUE(queries_that_see_any(rule, {mask.len_k, mask.len_k + 64}).empty());
    EXPECT_TRUE(queries_that_see_all(rule, {mask.len_k, mask.len_k + 64}).empty());
    EXPECT_TRUE(queries_that_see_all(rule, {0, mask.len_k + 1}).empty());
    EXPECT_TRUE(queries_that_see_any(rule, {3, 3}).empty());
    EXPECT_TRUE(queries_that_see_all(rule, {3, 3}).empty());
    EXPECT_TRUE(keys_seen_by_any(rule, {3, 3}).empty());
    EXPECT_TRUE(keys_seen_by_all(rule, {3, 3}).empty());
  }
}

TEST(rules, causal_and_window_intersect) {
  for (const MaskCase& mask : all_masks()) {
    SCOPED_TRACE(testing::Message() << mask);
    const MaskRule together = make_mask_rule(mask.len_q, mask.len_k, true, mask.left, mask.right);
    const MaskRule causal = make_mask_rule(mask.len_q, mask.len_k, true, -1, -1);
    const MaskRule window = make_mask_rule(mask.len_q, mask.len_k, false, mask.left, mask.right);
    for (int32_t q = 0; q < mask.len_q; ++q) {
      for (int32_t k = 0; k < mask.len_k; ++k) {
        const auto sees = [&](const MaskRule& rule) { return k >= rule.lo(q) && k < rule.hi(q); };
        ASSERT_EQ(sees(together), sees(causal) && sees(window)) << "query " << q << " key " << k;
      }
    }
  }
}

TEST(rules, a_window_wider_than_any_sequence_is_unbounded) {
  for (const int64_t side : {int64_t{kLongest}, int64_t{1} << 40, INT64_MAX}) {
    for (const int32_t len_q : {1, 3, kLongest}) {
      const MaskRule wide = make_mask_rule(len_q, kLongest, false, side, side);
      const MaskRule open = make_mask_rule(len_q, kLongest, false, -1, -1);
      for (const int32_t q : {0, len_q / 2, len_q - 1}) {
        EXPECT_EQ(wide.lo(q), open.lo(q));
        EXPECT_EQ(wide.hi(q), open.hi(q));
        EXPECT_EQ(open.lo(q), 0);
        EXPECT_EQ(open.hi(q), kLongest);
      }
    }
  }
}

TEST(rules, the_longest_sequences_work) {
  const MaskRule square = make_mask_rule(kLongest, kLongest, true, 1000, -1);
  EXPECT_EQ(square.lo(0), 0);
  EXPECT_EQ(square.hi(0), 1);
  EXPECT_EQ(square.lo(kLongest - 1), kLongest - 1001);
  EXPECT_EQ(square.hi(kLongest - 1), kLongest);
  const Range seeing = queries_that_see_any(square, {2000000000, 2000000064});
  EXPECT_EQ(seeing.begin, 2000000000);
  EXPECT_EQ(seeing.end, 2000001064);
  const Range complete = queries_that_see_all(square, {2000000000, 2000000064});
  EXPECT_EQ(complete.begin, 2000000063);
  EXPECT_EQ(complete.end, 2000001001);

  const MaskRule more_queries = make_mask_rule(kLongest, 1, true, -1, -1);
  EXPECT_EQ(more_queries.position(0), 1 - int64_t{kLongest});
  EXPECT_EQ(more_queries.hi(kLongest - 2), 0);
  EXPECT_EQ(more_queries.hi(kLongest - 1), 1);

  const MaskRule one_query = make_mask_rule(1, kLongest, false, kLongest - 1, kLongest);
  EXPECT_EQ(one_query.lo(0), 0);
  EXPECT_EQ(one_query.hi(0), kLongest);
}

TEST(rules, negative_lengths_are_empty) {
  const MaskRule rule = make_mask_rule(-5, -7, true, -1, -1);
  EXPECT_EQ(rule.len_q, 0);
  EXPECT_EQ(rule.len_k, 0);
}

}  // namespace
}  // namespace tilewise::visit
