// Choosing few cases out of many combinations: every level of every factor, and as many pairs of levels as
// fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cases/case.h"

namespace tilewise::cases {

// One thing that varies; level 0 is the plainest. Factors are applied in their order, so a later one may look
// at what earlier ones set.
struct Factor {
  std::string name;
  int levels = 1;
  std::function<void(Case&, int)> apply;
};

// All that varies about an operator.
struct Space {
  Case base;
  std::vector<Factor> factors;
  std::function<bool(const Case&)> legal;  // whether the combination exists (and is small enough)
};

// The case with these levels, one a factor.
Case at(const Space& space, const std::vector<int>& levels);

// The same case with level 0 wherever the level makes no difference (the second cache's page, where there is
// none).
std::vector<int> effective(const Space& space, std::vector<int> levels);

struct Chosen {
  std::vector<Case> cases;
  std::vector<std::vector<int>> levels;  // of every case
};

// At most `limit` legal cases. Deterministic.
Chosen choose_pairwise(const Space& space, size_t limit);

}  // namespace tilewise::cases
