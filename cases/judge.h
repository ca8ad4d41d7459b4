// Runs a case and says how far its results are from the oracle's: the one judge of tests, the demo and
// `verify`.
#pragma once

#include <string>
#include <vector>

#include "cases/data.h"
#include "reference/attention.h"
#include "reference/bound.h"

namespace tilewise::cases {

// plan(), run() and explain() of the case's operator.
Plan plan_case(const Args& args, const Device& device, const PlanOptions& options = {});
void run_case(const Plan& plan, const Args& args, Workspace workspace);
std::vector<KernelVerdict> explain_case(const Args& args, const Device& device);

// The oracle's answer, computed once for all kernels.
struct Truth {
  reference::AttentionResult exact;    // in double
  reference::AttentionResult rounded;  // the same formula in a good kernel's precision: makes the bound
  std::vector<uint8_t> bytes;          // kv moves: the output's whole memory from its first element on
};
Truth truth_of(const CaseData& data);
// The same for attention and merging, whose answer depends on nothing but the arguments.
Truth truth_of(const Args& args);

struct Judgement {
  std::string output;
  reference::Comparison comparison;
};

// One for every output that was asked for (for out_fp8 and out_sf together).
std::vector<Judgement> judge(const CaseData& data, const Truth& truth);
std::vector<Judgement> judge(const Args& args, const Truth& truth);

// The worst of them, its place preceded by the output's name.
reference::Comparison worst(const std::vector<Judgement>& judgements);

}  // namespace tilewise::cases
