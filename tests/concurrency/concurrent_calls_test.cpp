// Invariant 10, for several callers: threads that call operators at the same time, with the same inputs and
// the same plans but outputs and workspaces of their own, get the bits that a call alone gives.
//
// Under the thread sanitizer (preset cpu-tsan) the same calls show that they share nothing that is written. A
// call has one OpenMP thread here: what OpenMP's own threads do is invisible to the sanitizer.
#include <gtest/gtest.h>
#include <omp.h>

#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cases/data.h"
#include "cases/judge.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr int kCallers = 4;
constexpr int kCallsEach = 2;

PlanOptions one_thread(const std::string& kernel) {
  PlanOptions options;
  options.kernel = kernel;
  options.threads = 1;
  return options;
}

std::vector<std::string> kernels_for(const CaseData& data) {
  std::vector<std::string> names;
  for (const KernelVerdict& verdict : cases::explain_case(data.args(), Device::cpu())) {
    if (verdict.refusal.empty()) names.push_back(verdict.kernel);
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf(kernels_of(Device::cpu(), multiplies_bf16(data.args()))));
  return names;
}

/// What fills a case's data uses OpenMP as well.
class OneOpenMpThread {
 public:
  OneOpenMpThread() { omp_set_num_threads(1); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;
  ~OneOpenMpThread() { omp_set_num_threads(before_); }

 private:
  int before_ = omp_get_max_threads();
};

/// Somebody who calls: a view of the common inputs, outputs and a workspace of their own.
class Caller {
 public:
  Caller(const CaseData& common, Plan plan)
      : data_(common), plan_(std::move(plan)), workspace_(plan_.workspace_bytes()) {
    data_.reset_outputs();
    for (size_t i = 0; i < data_.operands().size(); ++i) {
      cases::Operand& mine = data_.operands()[i];
      if (mine.role == cases::Role::kInput) mine.view = common.operands()[i].view;
    }
    args_ = data_.args();
  }

  void call() { cases::run_case(plan_, args_, workspace_); }

  /// A call whose plan is made at the same time as those of others.
  void plan_and_call() {
    const Plan own = cases::plan_case(args_, Device::cpu(), one_thread(plan_.kernel()));
    cases::run_case(own, args_, workspace_);
  }

  Bits bits() const { return data_.output_bits(); }

 private:
  CaseData data_;
  Plan plan_;
  OwnedWorkspace workspace_;
  cases::Args args_;
};

using Callers = std::vector<std::unique_ptr<Caller>>;

/// All of them at once, each on a thread of its own.
void call_together(const Callers& callers) {
  std::latch all_are_there(static_cast<ptrdiff_t>(callers.size()));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] {
      all_are_there.arrive_and_wait();
      for (int repeat = 0; repeat < kCallsEach; ++repeat) {
        if (i % 2 == 0) {
          callers[i]->call();
        } else {
          callers[i]->plan_and_call();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Bits bits_alone(const CaseData& common, const Plan& plan) {
  Caller caller(common, plan);
  caller.call();
  return caller.bits();
}

/// Some of the operator's small cases, and one that is cut into pieces.
std::vector<Case> cases_of(Op op) {
  const std::vector<Case> all = small_cases(op);
  std::vector<Case> list = {all.front()};
  if (all.size() > 1) list.push_back(all[1]);
  if (!smoke()) {
    for (const Case& c : long_cases(op)) list.push_back(c);
  }
  return list;
}

class ConcurrentCalls : public OfOperator {};

TEST_P(ConcurrentCalls, OfOnePlanGiveTheBitsOfACallAlone) {
  const OneOpenMpThread alone;
  for (const Case& c : cases_of(GetParam())) {
    const CaseData common = cases::make(c);
    for (const std::string& kernel : kernels_for(common)) {
      SCOPED_TRACE("kernel " + kernel + ", case \"" + name(c) + "\"");
      const Plan plan = cases::plan_case(common.args(), Device::cpu(), one_thread(kernel));
      Callers callers;
      for (int i = 0; i < kCallers; ++i) callers.push_back(std::make_unique<Caller>(common, plan));
      call_together(callers);
      const Bits expected = bits_alone(common, plan);
      for (const auto& caller : callers) EXPECT_TRUE(same_bits(expected, caller->bits()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ConcurrentCalls,
                         ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

// One call of every operator by every kernel, all at the same time: what different operators and kernels
// share.
TEST(ConcurrentCallsOfAll, OperatorsAndKernelsGiveTheBitsOfACallAlone) {
  const OneOpenMpThread alone;
  std::vector<CaseData> commons;
  for (const Op op : cases::all_ops()) commons.push_back(cases::make(small_cases(op).front()));
  Callers callers;
  std::vector<std::pair<const CaseData*, Plan>> calls;
  for (const CaseData& common : commons) {
    for (const std::string& kernel : kernels_for(common)) {
      calls.emplace_back(&common, cases::plan_case(common.args(), Device::cpu(), one_thread(kernel)));
      callers.push_back(std::make_unique<Caller>(common, calls.back().second));
    }
  }
  call_together(callers);
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& [common, plan] = calls[i];
    EXPECT_TRUE(same_bits(bits_alone(*common, plan), callers[i]->bits())) << plan.describe();
  }
}

}  // namespace
}  // namespace tilewise::testing
