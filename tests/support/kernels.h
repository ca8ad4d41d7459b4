// Which kernels a test must have seen run on this machine.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cuda/kernels.h"
#include "tilewise/device.h"
#include "tilewise/tensor.h"

namespace tilewise::testing {

/// Whether a kernel multiplies tiles of bf16 and of no other type.
inline bool is_bf16_kernel(const std::string& kernel) {
  return kernel == "cpu_amx" || kernel == "cpu_avx512_bf16";
}

/// Whether a call, given as a variant of argument structs, multiplies tiles of bf16: AMX and AVX-512 BF16 do
/// nothing else.
template <class Args>
bool multiplies_bf16(const Args& args) {
  return std::visit(
      [](const auto& a) {
        if constexpr (requires { a.softmax_scale; }) return a.q.dtype() != DType::kFP16;
        return false;
      },
      args);
}

/// The kernels that must take a call on the machine. Written out here, so that a kernel that drops out of its
/// table is missed.
inline std::vector<std::string> kernels_of(const Device& device, bool bf16_products) {
  if (device.id.type == DeviceType::kCuda) return {"cuda_portable"};
  std::vector<std::pair<uint32_t, std::string>> all = {{kCpuAvx512, "cpu_avx512"},
                                                       {kCpuAvx2, "cpu_avx2"},
                                                       {kCpuSse4, "cpu_sse4"},
                                                       {kCpuBaseline, "cpu_baseline"}};
  if (bf16_products) {
    all.insert(all.begin(), {{kCpuAmxBf16, "cpu_amx"}, {kCpuAvx512Bf16, "cpu_avx512_bf16"}});
  }
  std::vector<std::string> names;
  for (const auto& [feature, name] : all) {
    if ((device.cpu_features & feature) != 0) names.push_back(name);
  }
  return names;
}

/// All rows of the table of such calls, best first, on any machine. Written out as well.
inline std::vector<std::string> table_rows(bool bf16_products) {
  std::vector<std::string> names = {"cpu_avx512", "cpu_avx2", "cpu_sse4", "cpu_baseline"};
  if (bf16_products) names.insert(names.begin(), {"cpu_amx", "cpu_avx512_bf16"});
  if (cuda::kBuilt) names.insert(names.begin(), "cuda_portable");
  return names;
}

/// As errors list them: "cpu_avx512, cpu_avx2, cpu_sse4 or cpu_baseline".
inline std::string table_text(bool bf16_products) {
  const std::vector<std::string> names = table_rows(bf16_products);
  std::string text = names[0];
  for (size_t i = 1; i < names.size(); ++i) text += (i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

}  // namespace tilewise::testing
