// How much memory an operator asks for beside its inputs and outputs.
#include <gtest/gtest.h>

#include "cases/judge.h"
#include "cases/sets.h"

namespace tilewise::cases {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;

TEST(memory, no_call_asks_for_more_than_64_mebibytes) {
  // Model-like shapes, and long sequences of many heads: the most pieces, of the largest tiles.
  std::vector<Case> all = demo_cases();
  for (const Case& c : bench_cases()) {
    if (c.op != Op::kDenseDecode) continue;
    all.push_back(c);
    all.back().h_q = 128;
    all.back().batch = 3;
  }
  for (const Case& c : all) {
    const CaseData data = make(c);
    for (const int threads : {1, 2, 3, 16, 64, 256}) {
      PlanOptions options;
      options.threads = threads;
      const Plan plan = plan_case(data.args(), Device::cpu(), options);
      EXPECT_LE(plan.workspace_bytes(), kMostBytes)
          << name(c) << ", " << threads << " threads: " << plan.describe();
    }
  }
}

}  // namespace
}  // namespace tilewise::cases
