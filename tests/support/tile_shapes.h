// Which tiles the portable GPU kernel has on which GPUs.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/small_cases.h"

namespace tilewise::testing {

// Shared memory that a block may have.
inline constexpr int32_t kLargeShared = 232448;   // H100, H200, B200
inline constexpr int32_t kMiddleShared = 166912;  // A100
inline constexpr int32_t kSmallShared = 101376;   // RTX 30, 40, 50, L40S

struct TileShape {
  int32_t shared_bytes;
  int64_t heads;
  const char* tiles;
};

inline constexpr TileShape kTileShapes[] = {
    {kLargeShared, 64, "64 rows x 64 keys"},  {kLargeShared, 32, "32 rows x 32 keys"},
    {kLargeShared, 16, "16 rows x 32 keys"},  {kMiddleShared, 64, "64 rows x 32 keys"},
    {kMiddleShared, 32, "32 rows x 32 keys"}, {kMiddleShared, 12, "16 rows x 32 keys"},
    {kSmallShared, 64, "32 rows x 32 keys"},  {kSmallShared, 20, "32 rows x 32 keys"},
    {kSmallShared, 16, "16 rows x 32 keys"},
};

/// Small calls of an attention operator, a row tile of which holds a token's heads.
inline std::vector<cases::Case> cases_with_heads(cases::Op op, int64_t heads) {
  std::vector<cases::Case> list = small_cases(op);
  for (const cases::Case& c : long_cases(op)) list.push_back(c);
  for (cases::Case& c : list) {
    c.h_q = heads;
    if (cases::is_dense(op)) {
      // A row tile holds a token's heads.
      c.h_kv = 1;
      c.s_q = 1;
    }
    if (cases::is_fused(op)) c.n_groups = 2;
  }
  return list;
}

}  // namespace tilewise::testing
