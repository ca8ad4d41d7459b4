// `tilewise bench`: times of single cases, without the comparison.
#pragma once

#include <string>

#include "tilewise/plan.h"

namespace tilewise::tools {

struct BenchOptions {
  std::string match;  // a case's name, or a regular expression for the names of the cases to time
  std::string json;   // file to write, or empty
  PlanOptions plan;
};

// The program's exit status. Throws UsageError when there is no such case or kernel.
int run_bench(const BenchOptions& options);

}  // namespace tilewise::tools
