// Invariant 1: memory that a call may not depend on changes no bit of its results, whatever it holds.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/spoil.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Layout;

std::vector<Case> cases_of(cases::Op op) {
  std::vector<Case> list = with_layout(small_cases(op), Layout::kViews);
  if (smoke()) return list;
  for (const Case& c : with_layout(long_cases(op), Layout::kViews)) list.push_back(c);
  return list;
}

// Kernels that read row 0 (or block 0) in the place of what is missing must be found out: nobody selects it.
void leave_row_0_alone(CaseData& data) {
  for (const char* name : {"indices", "extra_indices", "block_table", "slots"}) {
    if (!data.has(name)) continue;
    const TensorView view = data.view(name);
    const int64_t element = size_of(view.dtype());
    cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
      for (int64_t i = 0; i < n; i += element) {
        const bool is_0 = std::all_of(run + i, run + i + element, [](uint8_t byte) { return byte == 0; });
        if (is_0) run[i] = 1;
      }
    });
  }
}

// There must be rows to spoil, row 0 among them.
void expect_unselected_rows(const CaseData& data) {
  if (!is_attention(data.what().op)) return;
  const cases::Selection selected = cases::selection(data);
  for (const std::vector<int32_t>* counts : {&selected.main, &selected.extra}) {
    if (counts->empty()) continue;
    EXPECT_EQ(counts->front(), 0);
    EXPECT_GT(std::count(counts->begin(), counts->end(), 0), 3);
  }
}

// Outputs keep what spoil() put there: nothing is reset.
Bits run_spoiled(CaseData& data, const std::string& kernel, Fill fill) {
  run_kernel(data.args(), kernel, 2, fill);
  return data.output_bits();
}

std::vector<std::pair<std::string, Bits>> bits_of_kernels(CaseData data, Fill fill, Columns columns) {
  std::vector<std::pair<std::string, Bits>> all;
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    data.reset_outputs();
    EXPECT_GT(spoil(data, fill, columns), 0);
    all.emplace_back(kernel, run_spoiled(data, kernel, fill));
    EXPECT_EQ(data.disturbed_output(), "");
  });
  return all;
}

void expect_no_difference(const Case& c, Columns columns) {
  CaseData made = make(c);
  leave_row_0_alone(made);
  expect_unselected_rows(made);
  const auto with_zeros = bits_of_kernels(made, Fill::kZeros, columns);
  for (const Fill fill : kPoisons) {
    SCOPED_TRACE(name_of(fill));
    const auto poisoned = bits_of_kernels(made, fill, columns);
    ASSERT_EQ(poisoned.size(), with_zeros.size());
    for (size_t i = 0; i < poisoned.size(); ++i) {
      EXPECT_TRUE(same_bits(with_zeros[i].second, poisoned[i].second)) << with_zeros[i].first;
    }
  }
}

class UnreadMemory : public OfOperator {};

TEST_P(UnreadMemory, ChangesNoBit) {
  for (const Case& c : cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    expect_no_difference(c, Columns::kAll);
  }
}

TEST_P(UnreadMemory, ChangesNoBitWhereOnlyValuesOrOnlyKeysAreSpoiled) {
  for (const Case& c : cases_of(GetParam())) {
    if (c.d_qk <= kValueColumns || !is_attention(c.op)) continue;
    SCOPED_TRACE(name(c));
    expect_no_difference(c, Columns::kValues);
    expect_no_difference(c, Columns::kKeysOnly);
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnreadMemory,
                         ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

}  // namespace
}  // namespace tilewise::testing
