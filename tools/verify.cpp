// The sweep.
#include "tools/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <regex>

#include "cases/judge.h"
#include "cases/sets.h"
#include "tools/device.h"
#include "tools/measure.h"

namespace tilewise::tools {
namespace {

using cases::Case;
using cases::Op;

constexpr size_t kMaxShown = 20;  // broken results in the text; the JSON has all

std::vector<Case> set_of(const std::string& set, Op op) {
  if (set == "smoke") return cases::smoke_cases(op);
  if (set == "ci") return cases::ci_cases(op);
  if (set == "full") return cases::full_cases(op);
  std::vector<Case> list = set == "demo" ? cases::demo_cases() : cases::bench_cases();
  std::erase_if(list, [op](const Case& c) { return c.op != op; });
  return list;
}

std::vector<Case> chosen_cases(const VerifyOptions& options) {
  const std::regex match(options.match);
  std::vector<Case> chosen;
  for (const Op op : cases::all_ops()) {
    const auto& wanted = options.operators;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), cases::op_name(op)) == wanted.end())
      continue;
    for (const Case& c : set_of(options.set, op)) {
      if (std::regex_search(cases::name(c), match)) chosen.push_back(c);
    }
  }
  return chosen;
}

// One kernel's results for a case whose truth is known.
reference::Comparison compare(cases::CaseData& data, const cases::Truth& truth, const Device& device,
                              const PlanOptions& options) {
  data.reset_outputs();
  const cases::Args args = data.args();
  const Plan plan = cases::plan_case(args, device, options);
  const OwnedWorkspace workspace(plan.workspace_bytes());
  cases::run_case(plan, args, workspace);
  reference::Comparison found = cases::worst(cases::judge(data, truth));
  const std::string disturbed = data.disturbed_output();
  if (!disturbed.empty()) {
    found.note_wrong(
        [&] { return fmt::format("{}: memory outside of its elements was written", disturbed); });
  }
  return found;
}

}  // namespace

void verify_case(const Case& c, const Device& device, const VerifyOptions& options, Verification* found) {
  const std::string op = cases::op_name(c.op);
  const std::string name = cases::name(c);
  cases::CaseData data = cases::make(c);
  std::optional<cases::Truth> truth;
  bool ran = false;
  for (const KernelVerdict& verdict : cases::explain_case(data.args(), device)) {
    if (!options.kernel.empty() && verdict.kernel != options.kernel) continue;
    if (!verdict.refusal.empty()) {
      found->add_refusal(op, verdict.kernel);
      continue;
    }
    ran = true;
    try {
      if (!truth) {
        data.reset_outputs();
        truth = cases::truth_of(data);
      }
      const PlanOptions plan_options{verdict.kernel, options.threads};
      found->add_result(op, verdict.kernel, name, compare(data, *truth, device, plan_options));
    } catch (const std::exception& error) {
      found->add_failure(op, verdict.kernel, name, error.what());
    }
  }
  if (!ran) found->add_failure(op, options.kernel.empty() ? "any" : options.kernel, name, "no kernel ran");
}

Verification::Tally& Verification::tally(const std::string& op, const std::string& kernel) {
  const std::pair key(op, kernel);
  for (auto& [known, tally] : tallies_) {
    if (known == key) return tally;
  }
  return tallies_.emplace_back(key, Tally()).second;
}

void Verification::add_result(const std::string& op, const std::string& kernel, const std::string& name,
                              const reference::Comparison& comparison) {
  Tally& t = tally(op, kernel);
  ++t.results;
  t.worst.merge(comparison, name);
  if (comparison.ok) return;
  ++t.broken;
  broken_.push_back({name, kernel, comparison.where});
}

void Verification::add_refusal(const std::string& op, const std::string& kernel) {
  ++tally(op, kernel).refused;
}

void Verification::add_failure(const std::string& op, const std::string& kernel, const std::string& name,
                               const std::string& what) {
  ++tally(op, kernel).broken;
  broken_.push_back({name, kernel, what});
}

int64_t Verification::results() const {
  int64_t count = 0;
  for (const auto& [key, tally] : tallies_) count += tally.results;
  return count;
}

std::string Verification::text() const {
  std::vector<Cells> lines = {
      {"operator", "kernel", "results", "refused", "broken", "error", "bound", "error/bound"}};
  for (const auto& [key, tally] : tallies_) {
    Cells cells = {key.first, key.second, fmt::format("{}", tally.results), fmt::format("{}", tally.refused),
                   fmt::format("{}", tally.broken)};
    for (std::string& cell : comparison_cells(tally.worst)) {
      cells.push_back(tally.results > 0 ? std::move(cell) : "-");
    }
    lines.push_back(std::move(cells));
  }
  std::string text = align(lines, 2);
  for (size_t i = 0; i < std::min(broken_.size(), kMaxShown); ++i) {
    text += fmt::format("BROKEN: {} by {}: {}\n", broken_[i].name, broken_[i].kernel, broken_[i].what);
  }
  if (broken_.size() > kMaxShown) text += fmt::format("and {} more\n", broken_.size() - kMaxShown);
  return text;
}

nlohmann::json Verification::to_json() const {
  nlohmann::json kernels = nlohmann::json::array();
  for (const auto& [key, tally] : tallies_) {
    nlohmann::json entry = {{"operator", key.first},
                            {"kernel", key.second},
                            {"results", tally.results},
                            {"refused", tally.refused},
                            {"broken", tally.broken}};
    add_comparison(entry, tally.worst);
    entry["ok"] = tally.broken == 0;
    kernels.push_back(std::move(entry));
  }
  nlohmann::json broken = nlohmann::json::array();
  for (const Broken& b : broken_)
    broken.push_back({{"case", b.name}, {"kernel", b.kernel}, {"what", b.what}});
  return {{"ok", ok()}, {"kernels", kernels}, {"broken", broken}};
}

int run_verify(const VerifyOptions& options) {
  JsonFile json(options.json);
  const std::vector<Case> list = chosen_cases(options);
  if (list.empty()) throw UsageError(fmt::format("no case of the set {} matches", options.set));
  const Device device = device_named(options.device);
  check_kernel_name(options.kernel, list, device);
  const auto start = std::chrono::steady_clock::now();
  Verification found;
  {
    Progress progress(static_cast<int>(list.size()));
    for (const Case& c : list) {
      progress.step(cases::name(c));
      verify_case(c, device, options, &found);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::fputs(
      fmt::format("tilewise verify on {}\n\n{}\n{} cases of the set {}, {} results, {}; {:.0f} s\n",
                  to_string(device), found.text(), list.size(), options.set, found.results(),
                  found.ok() ? "all within their bounds" : "not all within their bounds", seconds.count())
          .c_str(),
      stdout);
  nlohmann::json report = found.to_json();
  report["device"] = to_string(device);
  report["set"] = options.set;
  report["cases"] = list.size();
  report["seconds"] = seconds.count();
  json.write(report);
  return found.ok() ? 0 : 1;
}

}  // namespace tilewise::tools
