// What varies about each operator.
#pragma once

#include <cstdint>
#include <vector>

#include "cases/pairwise.h"

namespace tilewise::cases {

// Lists that the tests' grid is made of.
struct Sizes {
  std::vector<int64_t> heads;
  std::vector<int64_t> widths;  // of token lists; dense_decode: keys
  std::vector<int64_t> tokens;
  std::vector<int64_t> batches;
  int64_t most_pairs = 0;  // heads * tokens * keys that one case may have
};

Sizes grid_sizes();   // for optimised builds
Sizes small_sizes();  // for slow ones

// Records that an operator's cache may have, alone and in pairs, with the head size.
struct RecordChoice {
  Record main = Record::kBf16;
  std::optional<Record> extra;
  int64_t d = 512;
};
std::vector<RecordChoice> record_choices(Op op);

Space space_of(Op op, const Sizes& sizes);

}  // namespace tilewise::cases
