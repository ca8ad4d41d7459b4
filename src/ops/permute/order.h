// The order that both weight permutations make: groups of channels, by channel first, then by head.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace tilewise {

inline constexpr int64_t kRowGroup = 16;     // channels that stay together in q
inline constexpr int64_t kColumnGroup = 32;  // channels that stay together in out_fp8 and share a scale

/// Where channel c of head h stands when groups of `unit` channels are grouped by channel first, then by
/// head.
TW_HD constexpr int64_t permuted(int64_t h, int64_t c, int64_t heads, int64_t unit) {
  return c / unit * heads * unit + h * unit + c % unit;
}

}  // namespace tilewise
