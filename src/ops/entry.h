// The four entry points that every operator offers, on top of its check function and its kernel table.
#pragma once

#include <vector>

#include "core/kernel_table.h"
#include "ops/checks.h"
#include "ops/tables.h"

namespace tilewise {

template <class F, class Args>
Plan plan_call(KernelTable<F> table, const Args& args, const Device& device, const PlanOptions& options) {
  return make_plan<F>(table, check(args, device.id).shape, device, options);
}

template <class F, class Args>
void run_call(const Plan& plan, const Args& args, Workspace workspace, Stream stream) {
  run_plan<F>(plan, check(args, plan.state().device.id), workspace, stream);
}

/// Plans, books a workspace and runs. On the CPU: tensors that lie elsewhere are refused by the check.
template <class F, class Args>
void call_once(KernelTable<F> table, const Args& args, const PlanOptions& options) {
  const Device device = Device::cpu();
  const auto problem = check(args, device.id);
  const Plan plan = make_plan<F>(table, problem.shape, device, options);
  const OwnedWorkspace workspace(plan.workspace_bytes());
  run_plan<F>(plan, problem, workspace, {});
}

template <class F, class Args>
std::vector<KernelVerdict> explain_call(KernelTable<F> table, const Args& args, const Device& device) {
  return explain_table<F>(table, check(args, device.id).shape, device);
}

}  // namespace tilewise
