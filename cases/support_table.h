// The table of the README: which kernels run which operator on which records.
#pragma once

#include <string>
#include <string_view>

#include "tilewise/device.h"
#include "tilewise/tensor.h"

namespace tilewise::cases {

// The operators that have no plan and no kernel table: one loop of moves on any CPU, or one kernel on any
// GPU, which goes by the device's name.
struct PlainOperator {
  const char* name;
  DType type;  // of what it moves
  bool on_gpu;
};
inline constexpr PlainOperator kPlainOperators[] = {{"permute_q_b_proj", DType::kE4M3, true},
                                                    {"permute_wv_proj", DType::kE4M3, true},
                                                    {"expand_block_selection", DType::kInt32, false},
                                                    {"invert_block_selection", DType::kInt32, false}};
// Null where there is none of that name.
inline const PlainOperator* plain_operator(std::string_view name) {
  for (const PlainOperator& op : kPlainOperators) {
    if (op.name == name) return &op;
  }
  return nullptr;
}
inline constexpr const char* plain_kernel(DeviceType device) {
  return device == DeviceType::kCpu ? "cpu" : "cuda";
}

// Markdown, made by asking the kernel tables about a small case of each kind, on a machine that has every
// instruction set and on an H200 (so that the table is the same everywhere). A build without CUDA has no
// GPU's tables to ask and writes down what it expects of them; a build with CUDA finds out whether that is
// so.
std::string support_table();

}  // namespace tilewise::cases
