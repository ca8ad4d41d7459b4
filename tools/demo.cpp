// The demo: a layer's calls, then the other operators and training at model-like shapes, in one table.
#include "tools/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "cases/sets.h"
#include "tools/device.h"
#include "tools/layer.h"
#include "tools/measure.h"
#include "tools/permutes.h"
#include "tools/training.h"

namespace tilewise::tools {
namespace {

std::vector<Row> all_rows(const Device& device, const PlanOptions& options) {
  const std::vector<cases::Case> list = cases::demo_cases();
  const bool trains = device.id.type == DeviceType::kCpu;  // no GPU has these operators yet
  Progress progress(kLayerSteps + static_cast<int>(list.size()) + kPermuteSteps +
                    (trains ? kTrainingSteps : 0));
  const auto step = [&](const std::string& what) { progress.step(what); };
  std::vector<Row> rows = run_layer(device, options, step);
  for (const cases::Case& c : list) {
    step(cases::name(c));
    rows.push_back(measure(c, device, options));
  }
  for (Row& row : run_permutes(device, step)) rows.push_back(std::move(row));
  if (trains) {
    for (Row& row : run_training(options, step)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

int run_demo(const DemoOptions& options) {
  JsonFile json(options.json);
  const Device device = device_named(options.device);
  check_kernel_name(options.plan.kernel, cases::demo_cases(), device);
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Row> rows = all_rows(device, options.plan);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

  std::string text = fmt::format("tilewise demo on {}\n\n{}\n", to_string(device), to_table(rows));
  text += "error: the largest difference from the double-precision oracle where it is nearest to its bound\n";
  int64_t broken = 0;
  for (const Row& row : rows) {
    if (row.comparison.ok) continue;
    ++broken;
    text += fmt::format("BROKEN: {} {} {}: {}\n", row.op, row.records, row.shape, row.comparison.where);
  }
  text += fmt::format("{} of {} results are within their bounds; {:.0f} s\n",
                      static_cast<int64_t>(rows.size()) - broken, rows.size(), seconds.count());
  std::fputs(text.c_str(), stdout);
  json.write({{"device", to_string(device)}, {"ok", broken == 0}, {"rows", to_json(rows)}});
  return broken == 0 ? 0 : 1;
}

}  // namespace tilewise::tools
