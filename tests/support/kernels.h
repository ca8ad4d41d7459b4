// Which kernels a test must have seen run on this machine.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tilewise/device.h"

namespace tilewise::testing {

/// The names that every operator's kernel table must have for the machine's instruction sets. Written out
/// here, so that a kernel that drops out of its table is missed.
inline std::vector<std::string> kernels_of(const Device& device) {
  const std::vector<std::pair<uint32_t, std::string>> all = {{kCpuAvx512, "cpu_avx512"},
                                                             {kCpuAvx2, "cpu_avx2"},
                                                             {kCpuSse4, "cpu_sse4"},
                                                             {kCpuBaseline, "cpu_baseline"}};
  std::vector<std::string> names;
  for (const auto& [feature, name] : all) {
    if ((device.cpu_features & feature) != 0) names.push_back(name);
  }
  return names;
}

}  // namespace tilewise::testing
