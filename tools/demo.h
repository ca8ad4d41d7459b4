// `tilewise demo`: model-like calls, each compared with the oracle and timed.
#pragma once

#include <string>

#include "tilewise/plan.h"

namespace tilewise::tools {

struct DemoOptions {
  std::string json;  // file to write, or empty
  PlanOptions plan;
  std::string device = "cpu";
};

// The program's exit status: 1 when a result is outside its bound. Throws UsageError when there is no such
// kernel.
int run_demo(const DemoOptions& options);

}  // namespace tilewise::tools
