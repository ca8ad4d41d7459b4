// One call of a case: judged against the oracle, timed, made a row of the table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cases/gpu.h"
#include "cases/judge.h"
#include "cases/work.h"
#include "tools/report.h"

namespace tilewise::tools {

struct Timing {
  double median = 0;  // milliseconds
  double fastest = 0;
  int runs = 0;
};

// Runs once, then at least `runs` times and until `least_milliseconds` have passed.
Timing time_runs(const std::function<void()>& run, int runs, double least_milliseconds);

// Median of some runs after a first one, in milliseconds.
double median_milliseconds(const std::function<void()>& run);

// Runs a call some times on its mirror and gives the median in milliseconds, without the copies of its
// tensors. Throws Error, whose text begins with `op`, where memory beside them was written there.
double time_on_gpu(cases::GpuMirror& mirror, const std::string& op, const std::function<void()>& run);

// Runs a call some times on the plan's device and gives the median in milliseconds.
double run_and_time(const Plan& plan, const cases::Args& args);

// The call's name, shape and rate in a row that has no comparison yet. Attention is counted in arithmetic,
// all else in bytes.
Row describe_call(const cases::CaseData& data, const Plan& plan, double milliseconds);

// Throws UsageError where `kernel`, as the command line has it, is none of `known`.
void check_kernel_name(const std::string& kernel, const std::vector<std::string>& known);
// The same for the tables of the cases' operators; an empty name is none that was asked for.
void check_kernel_name(const std::string& kernel, const std::vector<cases::Case>& list, const Device& device);

// Runs and judges a case on tensors of its own.
Row measure(const cases::Case& c, const Device& device, const PlanOptions& options);

}  // namespace tilewise::tools
