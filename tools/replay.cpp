// Replaying of case files.
#include "tools/replay.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "tools/call.h"
#include "tools/measure.h"
#include "tools/report.h"

namespace tilewise::tools {
namespace {

using cases::Judgement;

std::vector<Replayed> replay_all(const ReplayOptions& options, const LoadedCase& first,
                                 const std::vector<KernelVerdict>& verdicts) {
  std::vector<Replayed> kernels;
  const Expectation expectation(first.args());
  for (const KernelVerdict& verdict : verdicts) {
    Replayed replayed;
    replayed.kernel = verdict.kernel;
    replayed.refusal = verdict.refusal;
    if (verdict.refusal.empty()) {
      // Each kernel gets outputs that nobody has written.
      const LoadedCase call = load_case(options.file);
      replayed.milliseconds = time_call(call.args(), {verdict.kernel, options.threads});
      replayed.judgements = expectation.judge(call.args());
    }
    kernels.push_back(std::move(replayed));
  }
  return kernels;
}

int report(const ReplayOptions& options, JsonFile& json, const LoadedCase& call,
           const std::vector<Replayed>& kernels, const std::string& refusal) {
  const bool ok = refusal.empty() && (!call.has_data() || all_kept(kernels));
  std::string text = fmt::format("{}: {}\n", options.file, operator_name(call.args()));
  if (!call.has_data()) text += "saved without the tensors' contents: checked, not run\n";
  if (!refusal.empty()) {
    text += fmt::format("refused: {}\n", refusal);
  } else if (call.has_data()) {
    text += fmt::format("\n{}{}\n", to_text(kernels),
                        ok ? "all within their bounds" : "not all within their bounds");
  }
  std::fputs(text.c_str(), stdout);
  nlohmann::json result = {{"file", options.file},
                           {"operator", operator_name(call.args())},
                           {"device", to_string(Device::cpu())},
                           {"has_data", call.has_data()},
                           {"ok", ok},
                           {"kernels", to_json(kernels)}};
  if (!refusal.empty()) result["refusal"] = refusal;
  json.write(result);
  return ok ? 0 : 1;
}

LoadedCase load(const std::string& file) {
  try {
    return load_case(file);
  } catch (const CaseFileError& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

bool all_kept(const std::vector<Replayed>& kernels) {
  bool ran = false;
  for (const Replayed& kernel : kernels) {
    if (!kernel.refusal.empty()) continue;
    ran = true;
    for (const Judgement& j : kernel.judgements) {
      if (!j.comparison.ok) return false;
    }
  }
  return ran;
}

std::string to_text(const std::vector<Replayed>& kernels) {
  std::vector<Cells> lines = {{"kernel", "output", "error", "bound", "error/bound", "ms"}};
  std::string rest;
  for (const Replayed& kernel : kernels) {
    if (!kernel.refusal.empty()) rest += fmt::format("{} refused: {}\n", kernel.kernel, kernel.refusal);
    for (const Judgement& j : kernel.judgements) {
      Cells cells = {kernel.kernel, j.output};
      for (std::string& cell : comparison_cells(j.comparison)) cells.push_back(std::move(cell));
      cells.push_back(fmt::format("{:.3f}", kernel.milliseconds));
      lines.push_back(std::move(cells));
      if (!j.comparison.ok) {
        rest += fmt::format("BROKEN: {} by {}: {}\n", j.output, kernel.kernel, j.comparison.where);
      }
    }
  }
  return align(lines, 2) + rest;
}

nlohmann::json to_json(const std::vector<Replayed>& kernels) {
  nlohmann::json list = nlohmann::json::array();
  for (const Replayed& kernel : kernels) {
    nlohmann::json entry = {{"kernel", kernel.kernel}};
    if (!kernel.refusal.empty()) {
      entry["refusal"] = kernel.refusal;
    } else {
      nlohmann::json outputs = nlohmann::json::array();
      for (const Judgement& j : kernel.judgements) {
        nlohmann::json output = {{"output", j.output}};
        add_comparison(output, j.comparison);
        outputs.push_back(std::move(output));
      }
      entry["milliseconds"] = kernel.milliseconds;
      entry["outputs"] = std::move(outputs);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

int run_replay(const ReplayOptions& options) {
  JsonFile json(options.json);
  const LoadedCase call = load(options.file);
  std::vector<KernelVerdict> verdicts;
  try {
    verdicts = explain_call(call.args());
  } catch (const InvalidArgument& error) {
    return report(options, json, call, {}, error.what());
  }
  if (options.kernel != "all") {
    std::vector<std::string> names = {"all"};
    for (const KernelVerdict& verdict : verdicts) names.push_back(verdict.kernel);
    check_kernel_name(options.kernel, names);
    std::erase_if(verdicts, [&](const KernelVerdict& verdict) { return verdict.kernel != options.kernel; });
  }
  const bool runs = call.has_data();
  return report(options, json, call, runs ? replay_all(options, call, verdicts) : std::vector<Replayed>(),
                "");
}

}  // namespace tilewise::tools
