// Plans, workspaces, and the refusals that all kernel tables share.
#include "tilewise/plan.h"

#include <fmt/format.h>

#include <cstdlib>
#include <new>

#include "core/check.h"
#include "core/kernel_table.h"

namespace tilewise {
namespace {

// Every size and address that a plan reports is a multiple of this.
constexpr size_t kAlignment = Ledger::kAlignment;

std::string threads_text(int threads) { return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"); }

[[noreturn]] void refuse(const std::string& op, std::string_view argument, std::string_view expected,
                         std::string_view got) {
  Checker(op.c_str(), {}).refuse(argument, expected, got);
}

}  // namespace

OwnedWorkspace::OwnedWorkspace(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  if (bytes > SIZE_MAX - kAlignment) throw std::bad_alloc();
  data_.reset(std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
  if (!data_) throw std::bad_alloc();
}

void OwnedWorkspace::Free::operator()(void* p) const { std::free(p); }

const std::string& Plan::op() const { return state_->op; }
const std::string& Plan::kernel() const { return state_->kernel; }
size_t Plan::workspace_bytes() const { return state_->workspace_bytes; }
std::string Plan::describe() const { return state_->describe(); }

std::string describe_plan(const PlanState& state, const std::string& rest) {
  return fmt::format("{}: kernel {}, {}, {} B workspace; {}", state.op, state.kernel,
                     threads_text(state.threads), state.workspace_bytes, rest);
}

std::string forced_kernel(const PlanOptions& options) {
  if (!options.kernel.empty()) return options.kernel;
  const char* from_environment = std::getenv("TILEWISE_KERNEL");
  return from_environment != nullptr ? from_environment : "";
}

void refuse_unknown_kernel(const std::string& op, const std::string& kernel,
                           const std::vector<std::string>& known) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  refuse(op, "kernel", names.empty() ? "left out, as there is none yet" : either_of(names), kernel);
}

void refuse_forced_kernel(const std::string& op, const std::string& kernel, const std::string& reason) {
  refuse(op, "kernel", "one that supports this call", fmt::format("{}: {}", kernel, reason));
}

void refuse_all(const std::string& op, const std::vector<KernelVerdict>& verdicts) {
  std::string reasons = "no kernel that does";
  for (size_t i = 0; i < verdicts.size(); ++i) {
    reasons += fmt::format("{} {}: {}", i == 0 ? ":" : ";", verdicts[i].kernel, verdicts[i].refusal);
  }
  refuse(op, "kernel", "one that supports this call", reasons);
}

void refuse_other_plan(const std::string& op, const PlanState& state) {
  refuse(op, "plan", "one made for the same shapes, types and options",
         fmt::format("[{}]", state.describe()));
}

void check_threads(const std::string& op, const PlanOptions& options, const Device& device) {
  if (options.threads < 0) refuse(op, "threads", "at least 0", std::to_string(options.threads));
  if (options.threads == 0 && device.threads < 1) {
    refuse(op, "device", "of at least 1 thread", threads_text(device.threads));
  }
}

void check_workspace(const PlanState& state, Workspace workspace) {
  if (state.workspace_bytes == 0) return;
  if (workspace.bytes < state.workspace_bytes) {
    refuse(state.op, "workspace", fmt::format("of at least {} bytes", state.workspace_bytes),
           fmt::format("{} bytes", workspace.bytes));
  }
  if (workspace.data == nullptr) refuse(state.op, "workspace", "memory", "a null pointer");
  const auto past = reinterpret_cast<uintptr_t>(workspace.data) % kAlignment;
  if (past != 0) {
    refuse(state.op, "workspace", fmt::format("memory that starts at a multiple of {} bytes", kAlignment),
           fmt::format("an address {} byte{} past one", past, past == 1 ? "" : "s"));
  }
}

}  // namespace tilewise
