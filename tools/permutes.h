// The demo's last part: the permutations of a model's weights, done once when they are loaded.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tilewise/device.h"
#include "tools/report.h"

namespace tilewise::tools {

inline constexpr int kPermuteSteps = 2;

// `step` is told of each call.
std::vector<Row> run_permutes(const Device& device, const std::function<void(const std::string&)>& step);

}  // namespace tilewise::tools
