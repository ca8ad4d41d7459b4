// Runs calls through every kernel of their operator's table, forced by name.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cases/judge.h"
#include "tests/support/device.h"
#include "tests/support/kernels.h"
#include "tests/support/patterns.h"

namespace tilewise::testing {

using Bits = std::vector<std::vector<uint8_t>>;  // of all outputs of a call

/// TILEWISE_TEST_SET=smoke: slow builds run a part of what a test covers.
inline bool smoke() {
  const char* set = std::getenv("TILEWISE_TEST_SET");
  return set != nullptr && std::string_view(set) == "smoke";
}

/// One call. What the workspace holds before must not matter.
inline void run_kernel(const cases::Args& args, const std::string& kernel, int threads = 2,
                       Fill workspace_fill = Fill::kNan) {
  PlanOptions options;
  options.kernel = kernel;
  options.threads = threads;
  const Plan plan = cases::plan_case(args, device(), options);
  EXPECT_EQ(plan.kernel(), kernel);
  const OwnedWorkspace workspace(plan.workspace_bytes());
  const Workspace memory = workspace;
  fill_bytes({static_cast<uint8_t*>(memory.data), plan.workspace_bytes()}, DType::kFP32, workspace_fill);
  cases::run_case(plan, args, memory);
}

/// Calls `body(kernel)` for every kernel that takes the call, and expects every kernel of this machine among
/// them.
template <class Body>
void for_every_kernel(const cases::Args& args, const Body& body) {
  std::vector<std::string> ran;
  for (const KernelVerdict& verdict : cases::explain_case(args, device())) {
    if (!verdict.refusal.empty()) continue;
    SCOPED_TRACE("kernel " + verdict.kernel);
    body(verdict.kernel);
    ran.push_back(verdict.kernel);
  }
  EXPECT_THAT(ran, ::testing::IsSupersetOf(kernels_of(device(), multiplies_bf16(args))));
}

/// Outputs put back, one call, the outputs' bits.
inline Bits bits_of(cases::CaseData& data, const std::string& kernel, int threads = 2) {
  data.reset_outputs();
  run_kernel(data.args(), kernel, threads);
  return data.output_bits();
}

inline ::testing::AssertionResult same_bits(const Bits& expected, const Bits& actual) {
  if (expected.size() != actual.size()) return ::testing::AssertionFailure() << "another number of outputs";
  for (size_t o = 0; o < expected.size(); ++o) {
    if (expected[o].size() != actual[o].size())
      return ::testing::AssertionFailure() << "outputs of other sizes";
    for (size_t i = 0; i < expected[o].size(); ++i) {
      if (expected[o][i] == actual[o][i]) continue;
      return ::testing::AssertionFailure()
             << "output " << o << " differs first at byte " << i << " of " << expected[o].size()
             << ": expected " << int{expected[o][i]} << ", got " << int{actual[o][i]};
    }
  }
  return ::testing::AssertionSuccess();
}

/// What the data's outputs hold now, against the oracle's answer.
inline ::testing::AssertionResult agrees(const cases::CaseData& data, const cases::Truth& truth) {
  const reference::Comparison worst = cases::worst(cases::judge(data, truth));
  if (worst.ok) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << worst.worst_ratio << " times the bound of " << worst.bound_at_worst << " at " << worst.where;
}

/// A test that is made for every operator, or for some of them.
class OfOperator : public ::testing::TestWithParam<cases::Op> {};

inline std::string operator_name(const ::testing::TestParamInfo<cases::Op>& info) {
  return cases::op_name(info.param);
}

inline std::vector<cases::Op> ops_where(bool (*wanted)(cases::Op)) {
  std::vector<cases::Op> ops;
  for (const cases::Op op : cases::all_ops()) {
    if (wanted(op)) ops.push_back(op);
  }
  return ops;
}

}  // namespace tilewise::testing

namespace tilewise::cases {

inline void PrintTo(Op op, std::ostream* out) { *out << op_name(op); }

}  // namespace tilewise::cases
