// Answers about the machine and the kernel tables.
#include "tools/info.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "cases/judge.h"
#include "cases/sets.h"
#include "cases/support_table.h"

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

std::optional<Case> named(const std::string& text) {
  for (const Op op : cases::all_ops()) {
    if (text == cases::op_name(op)) return typical_case(op);
  }
  return cases::find_case(text);
}

std::string kernel_table(const Case& c, const Device& device) {
  const cases::CaseData data = cases::make(c);
  std::string text;
  for (const KernelVerdict& verdict : cases::explain_case(data.args(), device)) {
    text += fmt::format("  {:<14}{}\n", verdict.kernel,
                        verdict.refusal.empty() ? "supported" : "refused: " + verdict.refusal);
  }
  return text;
}

std::string explanation(const Case& c, const Device& device) {
  const cases::CaseData data = cases::make(c);
  return fmt::format("{}\n{}plan: {}\n", cases::name(c), kernel_table(c, device),
                     cases::plan_case(data.args(), device).describe());
}

std::string overview(const Device& device) {
  std::string text = fmt::format("device: {}\n", to_string(device));
  for (const Op op : cases::all_ops()) {
    text += fmt::format("{}\n{}", cases::op_name(op), kernel_table(typical_case(op), device));
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
  const Device device = Device::cpu();
  std::string text;
  if (options.support_table) text += cases::support_table();
  if (options.list_cases) text += case_names();
  if (!options.explain.empty()) {
    const std::optional<Case> c = named(options.explain);
    if (!c) {
      std::fputs(fmt::format("tilewise info: --explain must be an operator or a case of --cases, got '{}'\n",
                             options.explain)
                     .c_str(),
                 stderr);
      return 2;
    }
    text += explanation(*c, device);
  }
  if (text.empty()) text = overview(device);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace tilewise::tools
