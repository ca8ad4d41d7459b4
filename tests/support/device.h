// The device that tests run operators on.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cases/judge.h"
#include "tilewise/device.h"
#include "tilewise/plan.h"

namespace tilewise::testing {

/// This machine's CPU, or its first GPU where the environment has TILEWISE_TEST_DEVICE=cuda.
inline const Device& device() {
  static const Device chosen = [] {
    const char* set = std::getenv("TILEWISE_TEST_DEVICE");
    const std::string name = set == nullptr ? "cpu" : set;
    if (name == "cpu") return Device::cpu();
    if (name == "cuda") return Device::cuda();
    throw std::runtime_error("TILEWISE_TEST_DEVICE must be cpu or cuda, got " + name);
  }();
  return chosen;
}

/// Plans and runs a call whose tensors lie on the host.
inline void call(const cases::Args& args, const PlanOptions& options = {}) {
  const Plan plan = cases::plan_case(args, device(), options);
  const OwnedWorkspace workspace(plan.workspace_bytes());
  cases::run_case(plan, args, workspace);
}

}  // namespace tilewise::testing
