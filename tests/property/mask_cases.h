// Masks to test the visit headers with, and what they mean element by element, written apart from those
// headers.
#pragma once

#include <cstdint>
#include <ostream>
#include <random>
#include <vector>

#include "visit/rules.h"

namespace tilewise::visit {

inline constexpr int32_t kLongest = 2147483647;

struct MaskCase {
  int32_t len_q = 0;
  int32_t len_k = 0;
  bool causal = false;
  int64_t left = -1;
  int64_t right = -1;

  // Counted from the ends of both sequences, where they are aligned.
  bool sees(int32_t query, int32_t key) const {
    const int64_t ahead = (int64_t{len_q} - query) - (int64_t{len_k} - key);
    if (causal && ahead > 0) return false;
    if (left >= 0 && -ahead > left) return false;
    return right < 0 || ahead <= right;
  }

  MaskRule rule() const { return make_mask_rule(len_q, len_k, causal, left, right); }

  friend std::ostream& operator<<(std::ostream& out, const MaskCase& c) {
    return out << "len_q " << c.len_q << " len_k " << c.len_k << " causal " << c.causal << " window ("
               << c.left << ", " << c.right << ")";
  }
};

// How many keys of a range a query sees, from the predicate alone.
class SeenKeys {
 public:
  explicit SeenKeys(const MaskCase& mask)
      : width_(mask.len_k + 1), below_(static_cast<size_t>(mask.len_q) * width_) {
    for (int32_t q = 0; q < mask.len_q; ++q) {
      int32_t* row = below_.data() + static_cast<size_t>(q) * width_;
      for (int32_t k = 0; k < mask.len_k; ++k) row[k + 1] = row[k] + (mask.sees(q, k) ? 1 : 0);
    }
  }

  int32_t count(int32_t query, Range keys) const {
    const int32_t* row = below_.data() + static_cast<size_t>(query) * width_;
    return row[keys.end] - row[keys.begin];
  }
  int32_t count(int32_t query) const { return count(query, {0, width_ - 1}); }

 private:
  int32_t width_;
  std::vector<int32_t> below_;
};

inline int32_t pick(std::mt19937& random, int32_t first, int32_t last) {
  return std::uniform_int_distribution<int32_t>(first, last)(random);
}

inline int64_t pick_window_side(std::mt19937& random) {
  constexpr int64_t kSides[] = {-1, -1, 0, 1, 2, 15, 16, 17, 63, 64, 65, 128, 300, 401, int64_t{1} << 62};
  const int32_t n = static_cast<int32_t>(std::size(kSides));
  const int32_t which = pick(random, 0, n);
  return which < n ? kSides[which] : pick(random, 0, 400);
}

inline MaskCase random_mask(std::mt19937& random) {
  MaskCase mask;
  mask.len_q = pick(random, 0, 400);
  mask.len_k = pick(random, 0, 400);
  // Equal and nearly equal lengths, which chance alone would hardly give.
  if (pick(random, 0, 3) == 0) mask.len_k = mask.len_q + pick(random, 0, mask.len_q > 0 ? 1 : 0);
  mask.causal = pick(random, 0, 1) == 1;
  mask.left = pick_window_side(random);
  mask.right = pick_window_side(random);
  return mask;
}

inline std::vector<MaskCase> random_masks(uint32_t seed, int32_t n) {
  std::mt19937 random(seed);
  std::vector<MaskCase> masks;
  for (int32_t i = 0; i < n; ++i) masks.push_back(random_mask(random));
  return masks;
}

// Small lengths and lengths beside tile borders, both ways round, under every kind of mask.
inline std::vector<MaskCase> chosen_masks() {
  constexpr int32_t kLengths[][2] = {{0, 0},   {0, 5},     {5, 0},     {1, 1},     {1, 400},   {400, 1},
                                     {2, 3},   {16, 16},   {17, 16},   {63, 65},   {64, 64},   {65, 63},
                                     {1, 256}, {128, 257}, {257, 128}, {256, 256}, {100, 399}, {399, 100}};
  constexpr int64_t kWindows[][2] = {{-1, -1}, {0, 0},   {0, -1},  {-1, 0}, {7, 0},
                                     {0, 7},   {64, 64}, {-1, 20}, {20, -1}};
  std::vector<MaskCase> masks;
  for (const auto& [len_q, len_k] : kLengths) {
    for (const auto& [left, right] : kWindows) {
      for (const bool causal : {false, true}) masks.push_back({len_q, len_k, causal, left, right});
    }
  }
  return masks;
}

}  // namespace tilewise::visit
