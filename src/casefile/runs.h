// A view's elements as runs of bytes, in row-major order.
#pragma once

#include <array>
#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise::casefile {

/// Calls use(first byte, bytes) for every run.
template <class Use>
void for_each_run(const TensorView& view, const Use& use) {
  const int64_t element = size_of(view.dtype());
  if (element == 0 || view.numel() == 0) return;
  int64_t run = element;
  int outer = view.rank();
  while (outer > 0 && (view.size(outer - 1) == 1 || view.stride(outer - 1) * element == run)) {
    run *= view.size(--outer);
  }
  std::array<int64_t, TensorView::kMaxRank> at{};
  for (;;) {
    int64_t offset = 0;
    for (int i = 0; i < outer; ++i) offset += at[static_cast<size_t>(i)] * view.stride(i);
    use(view.data_as<uint8_t>() + offset * element, run);
    int dim = outer;
    while (dim > 0 && ++at[static_cast<size_t>(dim - 1)] == view.size(dim - 1))
      at[static_cast<size_t>(--dim)] = 0;
    if (dim == 0) return;
  }
}

}  // namespace tilewise::casefile
