// Invariant 7, beside the oracle's grid: what the kernel tables say of unusual sizes is what happens.
#include <optional>
#include <string>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

std::optional<std::string> refusal_of_plan(const cases::Args& args, const std::string& kernel) {
  PlanOptions options;
  options.kernel = kernel;
  try {
    cases::plan_case(args, device(), options);
    return std::nullopt;
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

// Runs every kernel that says it supports the call; all others must refuse it with their reason.
void expect_kept_promises(CaseData& data) {
  const cases::Truth truth = cases::truth_of(data);
  const auto verdicts = cases::explain_case(data.args(), device());
  ASSERT_FALSE(verdicts.empty());
  for (const KernelVerdict& verdict : verdicts) {
    SCOPED_TRACE("kernel " + verdict.kernel);
    if (!verdict.refusal.empty()) {
      EXPECT_THAT(refusal_of_plan(data.args(), verdict.kernel).value_or("nothing"),
                  ::testing::HasSubstr(verdict.refusal));
      continue;
    }
    bits_of(data, verdict.kernel);
    EXPECT_TRUE(agrees(data, truth));
    EXPECT_EQ(data.disturbed_output(), "");
  }
}

// explain(), plan() and the forced kernels all raise the same error, which names `expected`, and write
// nothing.
void expect_refused(CaseData& data, const std::string& expected) {
  const Bits before = data.output_bits();
  std::string text;
  try {
    cases::explain_case(data.args(), device());
    ADD_FAILURE() << "was explained";
  } catch (const InvalidArgument& error) {
    text = error.what();
  }
  EXPECT_THAT(text,
              ::testing::AllOf(::testing::StartsWith(std::string(cases::op_name(data.what().op)) + ": "),
                               ::testing::HasSubstr(expected)));
  EXPECT_EQ(refusal_of_plan(data.args(), ""), text);
  for (const std::string& kernel : kernels_of(device(), multiplies_bf16(data.args())))
    EXPECT_EQ(refusal_of_plan(data.args(), kernel), text);
  EXPECT_TRUE(same_bits(before, data.output_bits()));
}

class Supports : public OfOperator {};

TEST_P(Supports, HeadCounts) {
  for (const int64_t heads : {0, 1, 128, 129, 130, 192, 256, 320}) {
    Case c = small_cases(GetParam())[0];
    c.h_q = heads;
    c.h_kv = 1;
    c.n_groups = 1;
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    if (heads >= 1 && (heads <= 128 || heads % 64 == 0)) {
      expect_kept_promises(data);
    } else {
      expect_refused(data, "h_q " + std::to_string(heads));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Supports,
                         ::testing::ValuesIn(ops_where([](Op op) { return !cases::is_kv_move(op); })),
                         operator_name);

class SupportsAttention : public OfOperator {};

TEST_P(SupportsAttention, ListLengths) {
  for (const int64_t width : {0, 1, 2, 127, 129}) {
    Case c = small_cases(GetParam())[0];
    c.main.width = width;
    c.indexer_topk = 0;
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    expect_kept_promises(data);
  }
}

TEST_P(SupportsAttention, HeadSizes) {
  for (const int64_t d : {0, 100, 128, 500, 513, 640}) {
    CaseData data = cases::make(small_cases(GetParam())[0]);
    const TensorView q = data.view("q");
    std::vector<int64_t> shape(q.shape().begin(), q.shape().end());
    shape.back() = d;
    replace(data, "q", q.dtype(), shape);
    SCOPED_TRACE(d);
    expect_refused(data, "q must be");
  }
}

INSTANTIATE_TEST_SUITE_P(All, SupportsAttention, ::testing::ValuesIn(ops_where(cases::is_attention)),
                         operator_name);

class SupportsMoves : public OfOperator {};

TEST_P(SupportsMoves, RowCounts) {
  for (const int64_t rows : {0, 1, 6, 7}) {
    for (Case c : small_cases(GetParam())) {
      c.s_q = rows;
      SCOPED_TRACE(name(c));
      CaseData data = cases::make(c);
      expect_kept_promises(data);
    }
  }
}

TEST_P(SupportsMoves, HeadSizes) {
  const char* rows = GetParam() == Op::kAppendKv ? "kv" : "x";
  for (const int64_t d : {0, 100, 448, 640}) {
    CaseData data = cases::make(small_cases(GetParam())[0]);
    replace(data, rows, DType::kBF16, {data.view(rows).size(0), d});
    SCOPED_TRACE(d);
    expect_refused(data, rows + std::string(" must be"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SupportsMoves, ::testing::ValuesIn(ops_where(cases::is_kv_move)),
                         operator_name);

}  // namespace
}  // namespace tilewise::testing
