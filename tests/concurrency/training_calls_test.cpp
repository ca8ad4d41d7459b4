// The same for the training operators: callers share inputs and one plan, not outputs and workspaces.
#include <gtest/gtest.h>
#include <omp.h>

#include <latch>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "cases/training.h"

namespace tilewise::cases {
namespace {

constexpr int kCallers = 4;
constexpr int kCallsEach = 2;

SequenceCase small_case(Selected selected) {
  SequenceCase c;
  c.lengths_q = {70, 130};
  c.lengths_k = {150, 130};
  c.h_q = 2;
  c.causal = true;
  c.sink = Sink::kFinite;
  c.selected = selected;
  return c;
}

PlanOptions one_thread() {
  PlanOptions options;
  options.threads = 1;
  return options;
}

Plan plan_of(const SequenceArgs& args) {
  return std::visit([](const auto& a) { return plan(a, Device::cpu(), one_thread()); }, args);
}

void call(const Plan& planned, const SequenceArgs& args) {
  const OwnedWorkspace workspace(planned.workspace_bytes());
  std::visit([&](const auto& a) { run(planned, a, workspace); }, args);
}

void expect_bits_of_a_call_alone(Selected selected, bool backward) {
  SequenceData common(small_case(selected));
  const SequenceArgs alone = backward ? common.backward() : common.forward();
  const Plan planned = plan_of(alone);
  std::vector<std::unique_ptr<SequenceData>> callers;
  std::vector<SequenceArgs> calls;
  for (int i = 0; i < kCallers; ++i) {
    callers.push_back(std::make_unique<SequenceData>(small_case(selected)));
    SequenceData& mine = *callers.back();
    mine.q = common.q;
    mine.k = common.k;
    mine.v = common.v;
    mine.d_out = common.d_out;
    mine.q2k = common.q2k;
    calls.push_back(backward ? mine.backward() : mine.forward());
  }
  std::latch all_are_there(kCallers);
  std::vector<std::thread> threads;
  for (const SequenceArgs& args : calls) {
    threads.emplace_back([&] {
      all_are_there.arrive_and_wait();
      for (int i = 0; i < kCallsEach; ++i) call(planned, args);
    });
  }
  for (std::thread& thread : threads) thread.join();
  call(planned, alone);
  for (const SequenceArgs& args : calls) {
    EXPECT_EQ(SequenceData::outputs_of(alone), SequenceData::outputs_of(args));
  }
}

TEST(ConcurrentTraining, GivesTheBitsOfACallAlone) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const Selected selected : {Selected::kNothing, Selected::kPerHead}) {
    for (const bool backward : {false, true}) {
      SCOPED_TRACE(backward);
      expect_bits_of_a_call_alone(selected, backward);
    }
  }
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace tilewise::cases
