// A small call of every training operator, to be checked, planned and explained: its tensors are nowhere.
#pragma once

#include <string>
#include <vector>

#include "tilewise/case_file.h"

namespace tilewise::cases {

struct TrainingExample {
  std::string types;  // "bfloat16"
  CaseArgs args;
};

// Those with kernels to choose from, one for each type of tensors.
std::vector<TrainingExample> training_examples(DeviceId device = {});

// The kernel table of a call, judged for a device; empty for an operator that has none.
std::vector<KernelVerdict> explain_any(const CaseArgs& args, const Device& device);

}  // namespace tilewise::cases
