// One call of any operator, those without kernels included: its kernels, a timed run, the oracle's answer.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cases/judge.h"
#include "cases/training.h"
#include "tilewise/case_file.h"

namespace tilewise::tools {

// The operator's table of kernels, judged for the call; of a permutation, the one entry it goes by. Throws
// InvalidArgument where the operator refuses the call.
std::vector<KernelVerdict> explain_call(const CaseArgs& args);

// Runs the call a few times and gives the median in milliseconds.
double time_call(const CaseArgs& args, const PlanOptions& options);

// The oracle's answer for a call, which must be valid and not run yet.
class Expectation {
 public:
  explicit Expectation(const CaseArgs& args);

  // What the outputs of a copy of the call hold now.
  std::vector<cases::Judgement> judge(const CaseArgs& args) const;

 private:
  cases::Truth truth_;
  cases::TrainingTruth training_truth_;
  // Of the operators that are no attention: the outputs' elements, by name.
  std::vector<std::pair<std::string, std::vector<uint8_t>>> bytes_;
};

}  // namespace tilewise::tools
