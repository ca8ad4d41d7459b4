// The bytes that a view covers, to find out whether two views share memory.
#pragma once

#include <array>
#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise {

/// Runs of bytes, repeated in up to kMaxRank nested steps, outermost (largest) step first.
struct Footprint {
  struct Step {
    int64_t bytes = 0;
    int64_t times = 1;
  };

  int64_t first = 0;  ///< address of the first byte
  int64_t run = 0;    ///< bytes of a run without gaps; 0: the view has no element
  int num_steps = 0;
  std::array<Step, TensorView::kMaxRank> steps{};
  bool shares_itself = false;  ///< two elements may lie in one place

  int64_t extent() const;  ///< from the first byte to the end of the last run
};

Footprint footprint(const TensorView& view);

/// Whether two views share a byte. Views that lie in each other's gaps do not. Pairs with so many unequal
/// gaps that the answer would cost more than the call count as apart.
bool overlap(const Footprint& a, const Footprint& b);

}  // namespace tilewise
