// `tilewise replay`: the call in a case file, through every kernel, compared with the oracle and timed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cases/judge.h"
#include "tilewise/case_file.h"

namespace tilewise::tools {

struct ReplayOptions {
  std::string file;
  std::string kernel = "all";  // or a kernel's name
  int threads = 0;
  std::string json;  // file to write, or empty
};

// What one kernel did with the call.
struct Replayed {
  std::string kernel;
  std::string refusal;  // or empty
  std::vector<cases::Judgement> judgements;
  double milliseconds = 0;
};

// Whether every kernel that took the call kept its bounds, and there was one.
bool all_kept(const std::vector<Replayed>& kernels);
std::string to_text(const std::vector<Replayed>& kernels);
nlohmann::json to_json(const std::vector<Replayed>& kernels);

// The program's exit status: 1 when a bound is broken or the call is refused. Throws UsageError when the file
// cannot be read or there is no kernel of that name.
int run_replay(const ReplayOptions& options);

}  // namespace tilewise::tools
