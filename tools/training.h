// The demo's training steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tilewise/plan.h"
#include "tools/report.h"

namespace tilewise::tools {

// Steps of run_training's progress.
inline constexpr int kTrainingSteps = 3;

// Forward and backward of dense, block-sparse and token-sparse attention at model-like shapes, on the CPU:
// results and gradients against the oracle.
std::vector<Row> run_training(const PlanOptions& options,
                              const std::function<void(const std::string&)>& step);

}  // namespace tilewise::tools
