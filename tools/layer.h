// The demo's first part: what one attention layer of a serving engine asks for in a step.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tilewise/plan.h"
#include "tools/report.h"

namespace tilewise::tools {

inline constexpr int kLayerSteps = 4;

// Appends tokens to the layer's two caches, then attends for the tokens of a prompt and for decoded ones,
// both into one pair of outputs. `step` is told of each call.
std::vector<Row> run_layer(const Device& device, const PlanOptions& options,
                           const std::function<void(const std::string&)>& step);

}  // namespace tilewise::tools
