// One call of a case: judged against the oracle, timed, made a row of the table.
#pragma once

#include <functional>
#include <string>

#include "cases/judge.h"
#include "cases/work.h"
#include "tools/report.h"

namespace tilewise::tools {

// Median of some runs after a first one, in milliseconds.
double median_milliseconds(const std::function<void()>& run);

// The call's name, shape and rate in a row that has no comparison yet. Attention is counted in arithmetic,
// all else in bytes.
Row describe_call(const cases::CaseData& data, const Plan& plan, double milliseconds);

// Runs and judges a case on tensors of its own.
Row measure(const cases::Case& c, const PlanOptions& options);

}  // namespace tilewise::tools
