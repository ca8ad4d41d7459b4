// The table of the README: which kernels run which operator on which records.
#pragma once

#include <string>

#include "tilewise/device.h"

namespace tilewise::cases {

// The operators that have no plan and no kernel table: one loop of byte moves on any CPU, or one kernel on
// any GPU, which goes by the device's name.
inline constexpr const char* kPlainOperators[] = {"permute_q_b_proj", "permute_wv_proj"};
inline constexpr const char* plain_kernel(DeviceType device) {
  return device == DeviceType::kCpu ? "cpu" : "cuda";
}

// Markdown, made by asking the kernel tables about a small case of each kind, on a machine that has every
// instruction set and on an H200 (so that the table is the same everywhere). A build without CUDA has no
// GPU's tables to ask and writes down what it expects of them; a build with CUDA finds out whether that is
// so.
std::string support_table();

}  // namespace tilewise::cases
