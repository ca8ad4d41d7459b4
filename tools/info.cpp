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
  return fmt::format("  {:<14}{}\n", kernel, refusal.empty() ? "supported" : "refused: " + refusal);
}

std::string kernel_table(const cases::CaseData& data, const Device& device) {
  std::string text;
  for (const KernelVerdict& verdict : cases::explain_case(data.args(), device)) {
    text += verdict_line(verdict.kernel, verdict.refusal);
  }
  return text;
}

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

bool is_plain(const std::string& op) {
  return std::find(std::begin(cases::kPlainOperators), std::end(cases::kPlainOperators), op) !=
         std::end(cases::kPlainOperators);
}

// The table is printed whatever becomes of the plan: it says what the names are when a forced one is wrong.
void explain(const std::string& wanted, const Device& device) {
  if (is_plain(wanted)) {
    print(fmt::format("{}\n{}no plan\n", wanted, verdict_line(cases::plain_kernel(device.id.type), "")));
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
  print(fmt::format("{}\n{}", cases::name(*c), kernel_table(data, device)));
  print(fmt::format("plan: {}\n", cases::plan_case(data.args(), device).describe()));
}

std::string overview(const Device& device) {
  std::string text = fmt::format("tilewise {}\ndevice: {}\n", tilewise_version(), to_string(device));
  for (const Op op : cases::all_ops()) {
    text += fmt::format("{}\n{}", cases::op_name(op), kernel_table(cases::make(typical_case(op)), device));
  }
  for (const char* op : cases::kPlainOperators) {
    text += fmt::format("{}\n{}", op, verdict_line(cases::plain_kernel(device.id.type), ""));
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
