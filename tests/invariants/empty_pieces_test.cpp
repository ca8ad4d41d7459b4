// Invariant 2 inside a row: lists so long that kernels cut them into pieces, of which all but one have no
// valid key. What their accumulators would have held must not matter.
#include <string>
#include <utility>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

/// Leaves every list (dense_decode: every page table) the entries [begin, end) alone.
void keep_entries(const TensorView& lists, int64_t begin, int64_t end) {
  const int64_t width = lists.size(lists.rank() - 1);
  const int64_t middle = lists.rank() == 3 ? lists.size(1) : 1;
  for (int64_t i = 0; i < lists.size(0); ++i) {
    for (int64_t j = 0; j < middle; ++j) {
      auto* list =
          lists.data_as<int32_t>() + i * lists.stride(0) + (lists.rank() == 3 ? j * lists.stride(1) : 0);
      for (int64_t k = 0; k < width; ++k) {
        if (k < begin || k >= end) list[k] = -1;
      }
    }
  }
}

class EmptyPieces : public OfOperator {};

TEST_P(EmptyPieces, OneEntryOfALongListIsTheWholeRow) {
  const Case c = long_cases(GetParam()).front();
  const char* name_of_lists = cases::is_dense(c.op) ? "block_table" : "indices";
  const CaseData whole = cases::make(c);
  const int64_t width = whole.view(name_of_lists).size(whole.view(name_of_lists).rank() - 1);
  for (const int64_t kept : {int64_t{0}, width / 2, width - 1}) {
    SCOPED_TRACE(name(c) + ", entry " + std::to_string(kept));
    CaseData data = whole;
    keep_entries(data.view(name_of_lists), kept, kept + 1);
    if (data.has("extra_indices")) keep_entries(data.view("extra_indices"), 0, 0);
    const cases::Truth truth = cases::truth_of(data);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      for (const int threads : {1, 2}) {
        bits_of(data, kernel, threads);  // in a workspace full of NaN
        EXPECT_TRUE(agrees(data, truth)) << threads << " threads";
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmptyPieces, ::testing::ValuesIn(ops_where(cases::is_attention)),
                         operator_name);

}  // namespace
}  // namespace tilewise::testing
