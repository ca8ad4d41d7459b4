// Which keys of its sequence a query may see.
#pragma once

#include <cstdint>

namespace tilewise {

/// Sliding window around the query's own position (query and key sequences aligned at their ends): a key is
/// kept iff pos_q - left <= pos_k <= pos_q + right. -1 means unbounded; values below -1 are refused.
struct Window {
  int64_t left = -1;
  int64_t right = -1;

  bool operator==(const Window&) const = default;
};

}  // namespace tilewise
