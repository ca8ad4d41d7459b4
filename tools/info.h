// `tilewise info`: the machine, the kernel tables, and why a kernel does or does not take a call.
#pragma once

#include <string>

namespace tilewise::tools {

struct InfoOptions {
  std::string explain;  // a case's or an operator's name, or empty
  bool support_table = false;
  bool list_cases = false;
};

// The program's exit status: 2 when there is nothing of the name to explain.
int run_info(const InfoOptions& options);

}  // namespace tilewise::tools
