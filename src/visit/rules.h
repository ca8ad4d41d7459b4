// What a mask means: which keys a query may see. No other file knows.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace tilewise::visit {

// A half-open range of queries, keys or tiles.
struct Range {
  int32_t begin = 0;
  int32_t end = 0;

  TW_HD constexpr int32_t size() const { return end - begin; }
  TW_HD constexpr bool empty() const { return begin >= end; }
};

// Of numbers from 0 to 2^32 - 1, without the 64-bit divisions that GPUs do not have.
TW_HD constexpr int64_t quotient32(int64_t a, int64_t b) {
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}
TW_HD constexpr int64_t remainder32(int64_t a, int64_t b) {
  return static_cast<uint32_t>(a) % static_cast<uint32_t>(b);
}
TW_HD constexpr int64_t smaller(int64_t a, int64_t b) { return b < a ? b : a; }
TW_HD constexpr int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// The first index of [begin, end) where `holds` is true, or end. Once true, `holds` must stay true.
template <class Holds>
TW_HD constexpr int32_t first_where(int32_t begin, int32_t end, const Holds& holds) {
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// A distance that reaches past both ends from any position: positions lie within 2^31 of every key.
inline constexpr int64_t kUnbounded = int64_t{1} << 32;

// The keys [lo, hi) that one rule allows at a position. A rule is a function from positions to limits that
// never decrease; it need not keep them inside the sequence nor lo <= hi.
struct KeyLimits {
  int64_t lo = -kUnbounded;
  int64_t hi = kUnbounded;
};

TW_HD constexpr KeyLimits causal_rule(int64_t pos) { return {-kUnbounded, pos + 1}; }

TW_HD constexpr KeyLimits window_rule(int64_t pos, int64_t left, int64_t right) {
  return {pos - left, pos + right + 1};
}

// What both rules allow.
TW_HD constexpr KeyLimits both(KeyLimits a, KeyLimits b) { return {larger(a.lo, b.lo), smaller(a.hi, b.hi)}; }

// The mask of one sequence: len_q queries against len_k keys, aligned at their ends.
struct MaskRule {
  int32_t len_q = 0;
  int32_t len_k = 0;
  bool causal = false;
  int64_t left = kUnbounded;
  int64_t right = kUnbounded;

  // Where a query stands among the keys; negative when there are more queries than keys.
  TW_HD constexpr int64_t position(int32_t query) const { return int64_t{query} + len_k - len_q; }

  // The keys that a query sees, inside [0, len_k). Neither end ever decreases with the query, not even on
  // queries that see nothing: there hi is raised to lo, not lo lowered to hi, and a maximum of two rising
  // functions rises.
  TW_HD constexpr Range keys(int32_t query) const {
    const int64_t pos = position(query);
    KeyLimits limits = window_rule(pos, left, right);
    if (causal) limits = both(limits, causal_rule(pos));
    const int64_t lo = smaller(larger(limits.lo, 0), len_k);
    const int64_t hi = larger(smaller(limits.hi, len_k), lo);
    return {static_cast<int32_t>(lo), static_cast<int32_t>(hi)};
  }
  TW_HD constexpr int32_t lo(int32_t query) const { return keys(query).begin; }
  TW_HD constexpr int32_t hi(int32_t query) const { return keys(query).end; }
};

// Lengths below 0 count as 0; left and right below 0 mean unbounded.
TW_HD constexpr MaskRule make_mask_rule(int32_t len_q, int32_t len_k, bool causal, int64_t left,
                                        int64_t right) {
  return {.len_q = static_cast<int32_t>(larger(len_q, 0)),
          .len_k = static_cast<int32_t>(larger(len_k, 0)),
          .causal = causal,
          .left = left < 0 ? kUnbounded : smaller(left, kUnbounded),
          .right = right < 0 ? kUnbounded : smaller(right, kUnbounded)};
}

// The keys that some query of [queries.begin, queries.end) sees, and perhaps keys between them.
TW_HD constexpr Range keys_seen_by_any(const MaskRule& rule, Range queries) {
  if (queries.empty()) return {};
  return {rule.lo(queries.begin), rule.hi(queries.end - 1)};
}

// The keys that every query of the range sees; end < begin is possible and means none.
TW_HD constexpr Range keys_seen_by_all(const MaskRule& rule, Range queries) {
  if (queries.empty()) return {};
  return {rule.lo(queries.end - 1), rule.hi(queries.begin)};
}

// The reverse: the queries that see some key of [keys.begin, keys.end), and perhaps queries between them.
TW_HD constexpr Range queries_that_see_any(const MaskRule& rule, Range keys) {
  if (keys.empty()) return {};
  return {first_where(0, rule.len_q, [&](int32_t query) { return rule.hi(query) > keys.begin; }),
          first_where(0, rule.len_q, [&](int32_t query) { return rule.lo(query) >= keys.end; })};
}

// The queries that see every key of a range that is not empty; end < begin is possible and means none.
TW_HD constexpr Range queries_that_see_all(const MaskRule& rule, Range keys) {
  if (keys.empty()) return {};
  return {first_where(0, rule.len_q, [&](int32_t query) { return rule.hi(query) >= keys.end; }),
          first_where(0, rule.len_q, [&](int32_t query) { return rule.lo(query) > keys.begin; })};
}

}  // namespace tilewise::visit
