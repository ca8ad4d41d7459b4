// Timing by name. The machine's own rates, which these times are to be set against, are measured by the
// benchmark program.
#include "tools/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <regex>
#include <utility>
#include <vector>

#include "cases/judge.h"
#include "cases/sets.h"
#include "tools/measure.h"

namespace tilewise::tools {
namespace {

using cases::Case;

constexpr int kRuns = 5;
constexpr double kLeastMilliseconds = 200;

struct Timed {
  std::string name;
  std::string kernel;
  Timing timing;
  double rate = 0;
  std::string unit;
};

std::vector<Case> chosen_cases(const std::string& match) {
  if (const auto exact = match.empty() ? std::nullopt : cases::find_case(match)) return {*exact};
  const std::regex wanted(match);
  std::vector<Case> list = cases::bench_cases();
  for (const Case& c : cases::demo_cases()) {
    if (std::find(list.begin(), list.end(), c) == list.end()) list.push_back(c);
  }
  std::erase_if(list, [&](const Case& c) { return !std::regex_search(cases::name(c), wanted); });
  return list;
}

Timed time_case(const Case& c, const PlanOptions& options) {
  const cases::CaseData data = cases::make(c);
  const cases::Args args = data.args();
  const Plan plan = cases::plan_case(args, Device::cpu(), options);
  const OwnedWorkspace workspace(plan.workspace_bytes());
  const Timing timing = time_runs([&] { cases::run_case(plan, args, workspace); }, kRuns, kLeastMilliseconds);
  const Row row = describe_call(data, plan, timing.median);
  return {cases::name(c), plan.kernel(), timing, row.rate, row.unit};
}

std::string to_text(const std::vector<Timed>& list) {
  std::vector<Cells> lines = {{"case", "kernel", "median ms", "fastest ms", "runs", "rate"}};
  for (const Timed& t : list) {
    lines.push_back({t.name, t.kernel, fmt::format("{:.3f}", t.timing.median),
                     fmt::format("{:.3f}", t.timing.fastest), fmt::format("{}", t.timing.runs),
                     fmt::format("{:.1f} {}", t.rate, t.unit)});
  }
  return align(lines, 2);
}

nlohmann::json to_json(const std::vector<Timed>& list) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Timed& t : list) {
    rows.push_back({{"case", t.name},
                    {"kernel", t.kernel},
                    {"median_milliseconds", t.timing.median},
                    {"fastest_milliseconds", t.timing.fastest},
                    {"runs", t.timing.runs},
                    {"rate", t.rate},
                    {"unit", t.unit}});
  }
  return rows;
}

}  // namespace

int run_bench(const BenchOptions& options) {
  JsonFile json(options.json);
  const std::vector<Case> list = chosen_cases(options.match);
  if (list.empty()) throw UsageError(fmt::format("no case matches '{}'", options.match));
  check_kernel_name(options.plan.kernel, list, Device::cpu());
  std::vector<Timed> timed;
  {
    Progress progress(static_cast<int>(list.size()));
    for (const Case& c : list) {
      progress.step(cases::name(c));
      timed.push_back(time_case(c, options.plan));
    }
  }
  std::fputs(fmt::format("tilewise bench on {}\n\n{}", to_string(Device::cpu()), to_text(timed)).c_str(),
             stdout);
  json.write({{"device", to_string(Device::cpu())}, {"rows", to_json(timed)}});
  return 0;
}

}  // namespace tilewise::tools
