// `tilewise verify`: many cases through every kernel, each result compared with the oracle.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cases/case.h"
#include "reference/bound.h"
#include "tilewise/device.h"
#include "tools/report.h"

namespace tilewise::tools {

struct VerifyOptions {
  std::string set = "smoke";           // smoke, ci, full, demo or bench
  std::vector<std::string> operators;  // none: all
  std::string match;                   // a regular expression that the cases' names must match, or empty
  std::string kernel;                  // the only one to run, or empty
  int threads = 0;
  std::string device = "cpu";
  std::string json;  // file to write, or empty
};

// What a sweep has found so far.
class Verification {
 public:
  void add_result(const std::string& op, const std::string& kernel, const std::string& name,
                  const reference::Comparison& comparison);
  void add_refusal(const std::string& op, const std::string& kernel);
  // A case that could not be compared at all.
  void add_failure(const std::string& op, const std::string& kernel, const std::string& name,
                   const std::string& what);

  bool ok() const { return broken_.empty(); }
  int64_t results() const;
  // A line a kernel, then one for every broken result.
  std::string text() const;
  nlohmann::json to_json() const;

 private:
  struct Tally {
    int64_t results = 0;
    int64_t refused = 0;
    int64_t broken = 0;
    reference::Comparison worst;
  };
  struct Broken {
    std::string name;
    std::string kernel;
    std::string what;
  };

  Tally& tally(const std::string& op, const std::string& kernel);

  // In the order in which they came up.
  std::vector<std::pair<std::pair<std::string, std::string>, Tally>> tallies_;
  std::vector<Broken> broken_;
};

// Runs a case through every kernel that takes it, or the one that the options name.
void verify_case(const cases::Case& c, const Device& device, const VerifyOptions& options,
                 Verification* found);

// The program's exit status: 1 when a result is outside its bound. Throws UsageError when there is no case to
// run, or no such kernel.
int run_verify(const VerifyOptions& options);

}  // namespace tilewise::tools
