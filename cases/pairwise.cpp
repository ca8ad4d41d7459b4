// A greedy covering array: every new case is the best of some random candidates.
#include "cases/pairwise.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "cases/random.h"

namespace tilewise::cases {
namespace {

constexpr int kCandidates = 48;

class Chooser {
 public:
  explicit Chooser(const Space& space) : space_(space), first_level_(space.factors.size()) {
    for (size_t f = 0; f < space.factors.size(); ++f) {
      first_level_[f] = total_;
      total_ += static_cast<size_t>(space.factors[f].levels);
    }
    pair_seen_.assign(total_ * total_, false);
    level_seen_.assign(total_, false);
  }

  Chosen choose(size_t limit) {
    Chosen chosen;
    std::set<std::string> names;
    while (chosen.cases.size() < limit) {
      std::vector<int> best;
      int best_gain = 0;
      for (int i = 0; i < kCandidates; ++i) {
        std::vector<int> levels = effective(space_, candidate());
        const int gain = gain_of(levels);
        if (gain <= best_gain) continue;
        const Case c = at(space_, levels);
        if (!space_.legal(c) || names.count(name(c)) > 0) continue;
        best_gain = gain;
        best = std::move(levels);
      }
      if (best.empty()) break;
      mark(best);
      chosen.cases.push_back(at(space_, best));
      names.insert(name(chosen.cases.back()));
      chosen.levels.push_back(std::move(best));
    }
    return chosen;
  }

 private:
  size_t id(size_t factor, int level) const { return first_level_[factor] + static_cast<size_t>(level); }
  int64_t below(int64_t n) { return random_.below(counter_++, n); }

  // A level that no case has had yet counts more than any number of pairs.
  int level_gain(size_t factor, int level) const { return level_seen_[id(factor, level)] ? 0 : 1000; }
  int pair_gain(size_t f, int a, size_t g, int b) const {
    return pair_seen_[id(f, a) * total_ + id(g, b)] ? 0 : 1;
  }

  // Factors in random order, each with the level that gains most beside those already set.
  std::vector<int> candidate() {
    const size_t n = space_.factors.size();
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = n; i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    std::vector<int> levels(n, -1);
    for (const size_t f : order) {
      const int count = space_.factors[f].levels;
      const auto start = static_cast<int>(below(count));
      int best_gain = -1;
      for (int i = 0; i < count; ++i) {
        const int level = (start + i) % count;
        int gain = level_gain(f, level);
        for (size_t g = 0; g < n; ++g) {
          if (levels[g] >= 0) gain += pair_gain(f, level, g, levels[g]);
        }
        if (gain <= best_gain) continue;
        best_gain = gain;
        levels[f] = level;
      }
    }
    return levels;
  }

  int gain_of(const std::vector<int>& levels) const {
    int gain = 0;
    for (size_t f = 0; f < levels.size(); ++f) {
      gain += level_gain(f, levels[f]);
      for (size_t g = 0; g < f; ++g) gain += pair_gain(f, levels[f], g, levels[g]);
    }
    return gain;
  }

  void mark(const std::vector<int>& levels) {
    for (size_t f = 0; f < levels.size(); ++f) {
      level_seen_[id(f, levels[f])] = true;
      for (size_t g = 0; g < levels.size(); ++g)
        pair_seen_[id(f, levels[f]) * total_ + id(g, levels[g])] = true;
    }
  }

  const Space& space_;
  std::vector<size_t> first_level_;
  size_t total_ = 0;
  std::vector<bool> pair_seen_;
  std::vector<bool> level_seen_;
  Stream64 random_{0x7A11E};
  uint64_t counter_ = 0;
};

}  // namespace

Case at(const Space& space, const std::vector<int>& levels) {
  Case c = space.base;
  for (size_t f = 0; f < levels.size(); ++f) space.factors[f].apply(c, levels[f]);
  return c;
}

std::vector<int> effective(const Space& space, std::vector<int> levels) {
  const Case c = at(space, levels);
  for (int& level : levels) {
    const int wanted = std::exchange(level, 0);
    if (at(space, levels) != c) level = wanted;
  }
  return levels;
}

Chosen choose_pairwise(const Space& space, size_t limit) { return Chooser(space).choose(limit); }

}  // namespace tilewise::cases
