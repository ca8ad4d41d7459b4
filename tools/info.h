// `tilewise info`: the machine, the kernel tables, and why a kernel does or does not take a call.
#pragma once

#include <string>

namespace tilewise::tools {

struct InfoOptions {
  std::string explain;  // a case's or an operator's name, or empty
  bool support_table = false;
  bool list_cases = false;
  std::string device = "cpu";
};

// The program's exit status. Throws UsageError when there is nothing of the name to explain, and
// InvalidArgument when the kernel that the environment forces does not take the case.
int run_info(const InfoOptions& options);

}  // namespace tilewise::tools
