// Answers about the machine and the kernel tables.
#include "tools/info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>

#include "cases/judge.h"
#include "cases/sets.h"
#include "cases/support_table.h"
#include "cases/training_examples.h"
#include "tilewise/c_api.h"
#include "tools/device.h"
#include "tools/report.h"

namespace tilewise::tools {
namespace {

using cases::Case;
using cases::Op;

// A case to ask an operator's table with: the first one that does any work.
Case typical_case(Op op) {
  for (const Case& c : cases::smoke_cases(op)) {
    if (c.s_q > 0) return c;
  }
  return {};
}

std::string verdict_line(const std::string& kernel, const std::string& refusal) {
  return fmt::format("  {:<17}{}\n", kernel, refusal.empty() ? "supported" : "refused: " + refusal);
}

std::string kernel_table(const std::vector<KernelVerdict>& verdicts) {
  std::string text;
  for (const KernelVerdict& verdict : verdicts) text += verdict_line(verdict.kernel, verdict.refusal);
  return text;
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// An operator without plans has one kernel on every device that it runs on.
std::string plain_table(const cases::PlainOperator& op, const Device& device) {
  const bool runs = device.id.type == DeviceType::kCpu || op.on_gpu;
  const char* kernel = cases::plain_kernel(runs ? device.id.type : DeviceType::kCpu);
  return verdict_line(kernel, runs ? "" : "runs on the CPU, not on " + to_string(device.id));
}

// The table is printed whatever becomes of the plan: it says what the names are when a forced one is wrong.
void explain(const std::string& wanted, const Device& device) {
  if (const cases::PlainOperator* op = cases::plain_operator(wanted)) {
    print(fmt::format("{}\n{}no plan\n", wanted, plain_table(*op, device)));
    return;
  }
  for (const cases::TrainingExample& example : cases::training_examples(device.id)) {
    if (wanted != operator_name(example.args)) continue;
    print(fmt::format("{}\n{}", wanted, kernel_table(cases::explain_any(example.args, device))));
    const auto planned = [&]<class T>(const T& a) -> std::string {
      if constexpr (requires { plan(a, device); }) return plan(a, device).describe();
      return "none";
    };
    print(fmt::format("plan: {}\n", std::visit(planned, example.args)));
    return;
  }
  std::optional<Case> c = cases::find_case(wanted);
  for (const Op op : cases::all_ops()) {
    if (wanted == cases::op_name(op)) c = typical_case(op);
  }
  if (!c) {
    throw UsageError(fmt::format("--explain must be an operator or a case of --cases, got '{}'", wanted));
  }
  const cases::CaseData data = cases::make(*c);
  print(fmt::format("{}\n{}", cases::name(*c), kernel_table(cases::explain_case(data.args(), device))));
  print(fmt::format("plan: {}\n", cases::plan_case(data.args(), device).describe()));
}

std::string overview(const Device& device) {
  std::string text = fmt::format("tilewise {}\ndevice: {}\n", tilewise_version(), to_string(device));
  for (const Op op : cases::all_ops()) {
    const cases::CaseData data = cases::make(typical_case(op));
    text += fmt::format("{}\n{}", cases::op_name(op), kernel_table(cases::explain_case(data.args(), device)));
  }
  std::string last;
  for (const cases::TrainingExample& example : cases::training_examples(device.id)) {
    const std::string op = operator_name(example.args);
    // The first of an operator's types.
    if (op != last) {
      text += fmt::format("{}\n{}", op, kernel_table(cases::explain_any(example.args, device)));
    }
    last = op;
  }
  for (const cases::PlainOperator& op : cases::kPlainOperators) {
    text += fmt::format("{}\n{}", op.name, plain_table(op, device));
  }
  return text;
}

std::string case_names() {
  std::string text;
  for (const Case& c : cases::demo_cases()) text += cases::name(c) + "\n";
  for (const Case& c : cases::bench_cases()) text += cases::name(c) + "\n";
  for (const Op op : cases::all_ops()) {
    for (const Case& c : cases::ci_cases(op)) text += cases::name(c) + "\n";
  }
  return text;
}

}  // namespace

int run_info(const InfoOptions& options) {
  const Device device = device_named(options.device);
  if (options.support_table) print(cases::support_table());
  if (options.list_cases) print(case_names());
  if (!options.explain.empty()) explain(options.explain, device);
  if (!options.support_table && !options.list_cases && options.explain.empty()) print(overview(device));
  return 0;
}

}  // namespace tilewise::tools
