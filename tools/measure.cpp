// Measuring of single calls.
#include "tools/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string_view>

#include "core/check.h"
#include "core/kernel_table.h"

namespace tilewise::tools {
namespace {

using cases::CacheCase;
using cases::Case;

std::string records_of(const Case& c) {
  if (cases::has_cache_records(c.op)) {
    std::string text = record_name(c.main.record);
    if (c.extra) text += fmt::format("+{}", record_name(c.extra->record));
    return text;
  }
  return to_string(c.dtype);
}

std::string shape_of(const Case& c) {
  if (cases::is_kv_move(c.op)) return fmt::format("n{} d{}", c.s_q, c.d_qk);
  std::string text = c.batch > 1 ? fmt::format("b{} ", c.batch) : "";
  text += fmt::format("q{} h{} d{}", c.s_q, c.h_q, c.d_qk);
  if (cases::is_dense(c.op)) return text + fmt::format(" keys{}", c.main.width);
  if (cases::is_combine(c.op)) return text + fmt::format(" splits{}", c.num_splits);
  text += fmt::format(" topk{}", c.main.width);
  return c.extra ? text + fmt::format("+{}", c.extra->width) : text;
}

}  // namespace

Timing time_runs(const std::function<void()>& run, int runs, double least_milliseconds) {
  using Clock = std::chrono::steady_clock;
  run();
  std::vector<double> times;
  double total = 0;
  while (static_cast<int>(times.size()) < runs || total < least_milliseconds) {
    const Clock::time_point start = Clock::now();
    run();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    total += times.back();
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), static_cast<int>(times.size())};
}

double median_milliseconds(const std::function<void()>& run) { return time_runs(run, 3, 0).median; }

double time_on_gpu(cases::GpuMirror& mirror, const std::string& op, const std::function<void()>& run) {
  mirror.upload();
  const double milliseconds = median_milliseconds([&] {
    run();
    mirror.wait();
  });
  const std::string disturbed = mirror.download();
  if (!disturbed.empty()) throw Error(op + ": " + disturbed);
  return milliseconds;
}

double run_and_time(const Plan& plan, const cases::Args& args) {
  const Device& device = plan.state().device;
  if (device.id.type == DeviceType::kCpu) {
    const OwnedWorkspace workspace(plan.workspace_bytes());
    return median_milliseconds([&] { cases::run_case(plan, args, workspace); });
  }
  cases::GpuMirror mirror(args, device, plan.workspace_bytes());
  return time_on_gpu(mirror, plan.op(), [&] { mirror.run(plan); });
}

Row describe_call(const cases::CaseData& data, const Plan& plan, double milliseconds) {
  const Case& c = data.what();
  const cases::Work work = cases::work(data);
  const bool arithmetic = cases::is_attention(c.op);
  Row row;
  row.op = plan.op();
  row.records = records_of(c);
  row.shape = shape_of(c);
  row.kernel = plan.kernel();
  row.milliseconds = milliseconds;
  row.rate = (arithmetic ? work.flops : work.bytes) * 1e-6 / std::max(milliseconds, 1e-6);
  row.unit = arithmetic ? "GFLOP/s" : "GB/s";
  return row;
}

void check_kernel_name(const std::string& kernel, const std::vector<std::string>& known) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  if (std::find(names.begin(), names.end(), kernel) != names.end()) return;
  throw UsageError(fmt::format("--kernel must be {}, got {}", either_of(names), kernel));
}

void check_kernel_name(const std::string& kernel, const std::vector<Case>& list, const Device& device) {
  if (kernel.empty()) return;
  std::set<cases::Op> seen;
  std::vector<std::string> known;
  for (const Case& c : list) {
    if (!seen.insert(c.op).second) continue;
    for (const KernelVerdict& v : cases::explain_case(cases::make(c).args(), device)) {
      if (std::find(known.begin(), known.end(), v.kernel) == known.end()) known.push_back(v.kernel);
    }
  }
  check_kernel_name(kernel, known);
}

Row measure(const Case& c, const Device& device, const PlanOptions& options) {
  const cases::CaseData data = cases::make(c);
  const cases::Args args = data.args();
  const Plan plan = cases::plan_case(args, device, options);
  Row row = describe_call(data, plan, run_and_time(plan, args));
  row.comparison = cases::worst(cases::judge(data, cases::truth_of(data)));
  return row;
}

}  // namespace tilewise::tools
