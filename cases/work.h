// What a case's call has to do: which cached tokens it reads, how much arithmetic that is and how many bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "cases/data.h"

namespace tilewise::cases {

// For every slot of a cache: how many (query token, list entry) pairs read it. Rows with 0 must not matter.
struct Selection {
  std::vector<int32_t> main;
  std::vector<int32_t> extra;
};

// Of the attention operators.
Selection selection(const CaseData& data);

struct Work {
  int64_t pairs = 0;  // attended (query token, key) pairs
  double flops = 0;   // 2 * pairs * heads * (d_qk + d_v); none where nothing is multiplied
  double bytes = 0;   // that must move at least: cached rows as often as a token (dense_decode: a request)
                      // reads them, inputs and outputs once
};

Work work(const CaseData& data);

}  // namespace tilewise::cases
