// The four entry points that every operator offers, on top of its check function and its kernel table. The
// calls among them are saved as case files when they raise, if the user wants that.
#pragma once

#include <vector>

#include "casefile/on_error.h"
#include "core/kernel_table.h"
#include "ops/checks.h"
#include "ops/tables.h"

namespace tilewise {

template <class F, class Args>
Plan plan_call(KernelTable<F> table, const Args& args, const Device& device, const PlanOptions& options) {
  return casefile::or_saved(
      args, [&] { return make_plan<F>(table, check(args, device.id).shape, device, options); });
}

template <class F, class Args>
void run_call(const Plan& plan, const Args& args, Workspace workspace, Stream stream) {
  casefile::or_saved(args,
                     [&] { run_plan<F>(plan, check(args, plan.state().device.id), workspace, stream); });
}

/// Plans, books a workspace and runs. On the CPU: tensors that lie elsewhere are refused by the check.
template <class F, class Args>
void call_once(KernelTable<F> table, const Args& args, const PlanOptions& options) {
  casefile::or_saved(args, [&] {
    const Device device = Device::cpu();
    const auto problem = check(args, device.id);
    const Plan plan = make_plan<F>(table, problem.shape, device, options);
    const OwnedWorkspace workspace(plan.workspace_bytes());
    run_plan<F>(plan, problem, workspace, {});
  });
}

template <class F, class Args>
std::vector<KernelVerdict> explain_call(KernelTable<F> table, const Args& args, const Device& device) {
  return explain_table<F>(table, check(args, device.id).shape, device);
}

}  // namespace tilewise
