// Every case through every kernel of its operator's table, forced by name, against the oracle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cases/judge.h"
#include "cases/sets.h"
#include "tests/support/device.h"
#include "tests/support/kernels.h"

namespace tilewise::cases {

void PrintTo(const Case& c, std::ostream* out) { *out << name(c); }

namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const Op op : all_ops()) {
    const std::vector<Case> cases = test_cases(op);
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

std::string test_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(op_name(info.param.op)) + "_" + std::to_string(info.index);
}

// Scratch memory full of NaN, with margins that must stay so.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : memory_(static_cast<int64_t>(bytes), 0) {
    memory_.whole([&](uint8_t* p) { std::fill_n(p, memory_.whole_bytes(), uint8_t{0xFF}); });
  }
  operator Workspace() const { return {memory_.data(), static_cast<size_t>(memory_.bytes())}; }

  bool margins_hold() const {
    bool hold = true;
    memory_.whole([&](const uint8_t* p) {
      for (int64_t i = 0; i < memory_.whole_bytes(); ++i) {
        const bool inside = i >= memory_.before() && i < memory_.before() + memory_.bytes();
        hold = hold && (inside || p[i] == 0xFF);
      }
    });
    return hold;
  }

 private:
  Buffer memory_;
};

class EveryKernel : public ::testing::TestWithParam<Case> {
 protected:
  EveryKernel() : data_(make(GetParam())), args_(data_.args()), inputs_(data_.inputs_fingerprint()) {}

  // One call on `threads` threads, outputs as they are.
  void run_once(const std::string& kernel, int threads) {
    PlanOptions options;
    options.kernel = kernel;
    options.threads = threads;
    const Plan plan = plan_case(args_, device_, options);
    ASSERT_EQ(plan.kernel(), kernel);
    ASSERT_EQ(plan.op(), op_name(GetParam().op));
    const Scratch scratch(plan.workspace_bytes());
    run_case(plan, args_, scratch);
    EXPECT_TRUE(scratch.margins_hold()) << "wrote outside its workspace";
    EXPECT_EQ(data_.disturbed_output(), "") << "wrote outside an output's elements";
    EXPECT_EQ(data_.inputs_fingerprint(), inputs_) << "changed an input";
  }

  void expect_right_results(const Truth& truth) {
    for (const Judgement& j : judge(data_, truth)) {
      EXPECT_TRUE(j.comparison.ok) << j.output << ": " << j.comparison.worst_ratio << " times the bound of "
                                   << j.comparison.bound_at_worst << " at " << j.comparison.where;
    }
  }

  void expect_refusal(const KernelVerdict& verdict) {
    PlanOptions options;
    options.kernel = verdict.kernel;
    try {
      plan_case(args_, device_, options);
      ADD_FAILURE() << "was planned although its table row refuses: " << verdict.refusal;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(verdict.refusal));
    }
  }

  Device device_ = testing::device();
  CaseData data_;
  Args args_;
  uint64_t inputs_;
};

TEST_P(EveryKernel, AgreesWithTheOracle) {
  const Truth truth = truth_of(data_);
  std::vector<std::string> ran;
  for (const KernelVerdict& verdict : explain_case(args_, device_)) {
    SCOPED_TRACE("kernel " + verdict.kernel + ", case \"" + name(GetParam()) + "\"");
    if (!verdict.refusal.empty()) {
      expect_refusal(verdict);
      continue;
    }
    data_.reset_outputs();
    ASSERT_NO_FATAL_FAILURE(run_once(verdict.kernel, 1));
    expect_right_results(truth);
    const auto bits = data_.output_bits();

    data_.reset_outputs();
    ASSERT_NO_FATAL_FAILURE(run_once(verdict.kernel, 2));
    EXPECT_TRUE(data_.output_bits() == bits) << "two threads give other bits than one";

    ASSERT_NO_FATAL_FAILURE(run_once(verdict.kernel, 2));
    EXPECT_TRUE(data_.output_bits() == bits) << "a second call gives other bits";
    ran.push_back(verdict.kernel);
  }
  EXPECT_THAT(ran, IsSupersetOf(testing::kernels_of(device_, testing::multiplies_bf16(args_))));
}

INSTANTIATE_TEST_SUITE_P(Cases, EveryKernel, ::testing::ValuesIn(all_cases()), test_name);

}  // namespace
}  // namespace tilewise::cases
