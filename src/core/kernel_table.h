// Kernel tables: an operator family's kernels, best first, and the one way to choose, plan and run them.
//
// A family F names three types: F::Shape (all that a plan may depend on; comparable and printable through
// describe(shape)), F::Problem (a Shape named `shape` plus pointers and strides) and F::KernelPlan (`threads`
// that it uses, tiles, work kind and booked offsets; printable through describe(plan)).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ledger.h"
#include "tilewise/error.h"
#include "tilewise/plan.h"

namespace tilewise {

/// What every plan holds; PlanOf<F> adds the family's part.
struct PlanState {
  std::string op;
  std::string kernel;
  Device device;
  int threads = 1;  // that the kernel uses: at most those that were asked for
  size_t workspace_bytes = 0;

  virtual ~PlanState() = default;
  virtual std::string describe() const = 0;
};

/// Where a call runs: its booked workspace, its work queue, its device.
struct RunPlace {
  void* workspace = nullptr;
  Stream stream;
  DeviceId device;
};

template <class F>
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual const std::string& name() const = 0;
  /// Nothing when the kernel runs this problem on this device, otherwise the reason why not.
  virtual std::optional<std::string> refusal(const typename F::Shape& shape, const Device& device) const = 0;
  /// Uses at most device.threads CPU threads.
  virtual typename F::KernelPlan plan(const typename F::Shape& shape, const Device& device,
                                      Ledger& ledger) const = 0;
  virtual void run(const typename F::Problem& problem, const typename F::KernelPlan& plan,
                   const RunPlace& place) const = 0;
};

template <class F>
using KernelTable = std::span<const Kernel<F>* const>;

/// describe(value), found where the value's type lives; PlanOf's own describe would hide it.
template <class T>
std::string description(const T& value) {
  return describe(value);
}

template <class F>
struct PlanOf final : PlanState {
  typename F::Shape shape;
  typename F::KernelPlan kernel_plan;
  const Kernel<F>* row = nullptr;

  std::string describe() const override {
    return describe_plan(*this, description(shape) + "; " + description(kernel_plan));
  }
};

/// "sparse_decode: kernel cpu_avx2, 2 threads, 1024 B workspace; <rest>".
std::string describe_plan(const PlanState& state, const std::string& rest);
/// The kernel that options or the environment force, or an empty string.
std::string forced_kernel(const PlanOptions& options);
[[noreturn]] void refuse_unknown_kernel(const std::string& op, const std::string& kernel,
                                        const std::vector<std::string>& known);
[[noreturn]] void refuse_forced_kernel(const std::string& op, const std::string& kernel,
                                       const std::string& reason);
[[noreturn]] void refuse_all(const std::string& op, const std::vector<KernelVerdict>& verdicts);
[[noreturn]] void refuse_other_plan(const std::string& op, const PlanState& state);
void check_threads(const std::string& op, const PlanOptions& options, const Device& device);
void check_workspace(const PlanState& state, Workspace workspace);

template <class F>
std::vector<KernelVerdict> explain_table(KernelTable<F> table, const typename F::Shape& shape,
                                         const Device& device) {
  std::vector<KernelVerdict> verdicts;
  for (const Kernel<F>* kernel : table) {
    verdicts.push_back({kernel->name(), kernel->refusal(shape, device).value_or("")});
  }
  return verdicts;
}

template <class F>
const Kernel<F>* choose_kernel(KernelTable<F> table, const typename F::Shape& shape, const Device& device,
                               const std::string& forced) {
  if (forced.empty()) {
    for (const Kernel<F>* kernel : table) {
      if (!kernel->refusal(shape, device)) return kernel;
    }
    refuse_all(shape.op, explain_table<F>(table, shape, device));
  }
  std::vector<std::string> known;
  for (const Kernel<F>* kernel : table) {
    known.push_back(kernel->name());
    if (kernel->name() != forced) continue;
    if (const auto reason = kernel->refusal(shape, device)) refuse_forced_kernel(shape.op, forced, *reason);
    return kernel;
  }
  refuse_unknown_kernel(shape.op, forced, known);
}

template <class F>
Plan make_plan(KernelTable<F> table, const typename F::Shape& shape, const Device& device,
               const PlanOptions& options) {
  check_threads(shape.op, options, device);
  auto state = std::make_shared<PlanOf<F>>();
  state->row = choose_kernel<F>(table, shape, device, forced_kernel(options));
  state->op = shape.op;
  state->kernel = state->row->name();
  state->device = device;
  state->shape = shape;
  Ledger ledger;
  Device used = device;
  if (options.threads > 0) used.threads = options.threads;
  state->kernel_plan = state->row->plan(shape, used, ledger);
  state->threads = state->kernel_plan.threads;
  state->workspace_bytes = ledger.bytes();
  return Plan(std::move(state));
}

template <class F>
void run_plan(const Plan& plan, const typename F::Problem& problem, Workspace workspace, Stream stream) {
  const auto* state = dynamic_cast<const PlanOf<F>*>(&plan.state());
  if (state == nullptr || !(state->shape == problem.shape)) refuse_other_plan(problem.shape.op, plan.state());
  check_workspace(*state, workspace);
  state->row->run(problem, state->kernel_plan, {workspace.data, stream, state->device.id});
}

}  // namespace tilewise
