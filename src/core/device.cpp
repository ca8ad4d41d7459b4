// What this machine's CPU can do.
#include "tilewise/device.h"

#include <fmt/format.h>
#include <hwy/targets.h>
#include <omp.h>

#include "core/cpu_bf16.h"

namespace tilewise {
namespace {

struct Feature {
  uint32_t bit;
  int64_t target;  // Highway's; 0: none
  const char* name;
};

constexpr Feature kFeatures[] = {
    {kCpuBaseline, 0, "baseline"},    {kCpuSse4, HWY_SSE4, "sse4"},       {kCpuAvx2, HWY_AVX2, "avx2"},
    {kCpuAvx512, HWY_AVX3, "avx512"}, {kCpuAvx512Bf16, 0, "avx512_bf16"}, {kCpuAmxBf16, 0, "amx_bf16"},
};

}  // namespace

std::string to_string(DeviceId id) {
  return id.type == DeviceType::kCpu ? "cpu" : fmt::format("cuda:{}", id.index);
}

Device Device::cpu() {
  Device device;  // has the baseline
  const int64_t targets = hwy::SupportedTargets();
  for (const Feature& feature : kFeatures) {
    if ((targets & feature.target) != 0) device.cpu_features |= feature.bit;
  }
  if ((targets & HWY_AVX3) != 0) {
    if (avx512_bf16_is_usable()) device.cpu_features |= kCpuAvx512Bf16;
    if (amx_is_usable()) device.cpu_features |= kCpuAmxBf16;
  }
  device.threads = omp_get_max_threads();
  return device;
}

std::string to_string(const Device& device) {
  std::string text = to_string(device.id);
  if (device.id.type == DeviceType::kCuda) {
    return text + fmt::format(", compute capability {}.{}, {} multiprocessors, {} B shared memory",
                              device.cuda_capability / 10, device.cuda_capability % 10, device.cuda_sms,
                              device.cuda_shared_bytes);
  }
  text += fmt::format(", {} thread{},", device.threads, device.threads == 1 ? "" : "s");
  for (const Feature& feature : kFeatures) {
    if ((device.cpu_features & feature.bit) != 0) text += fmt::format(" {}", feature.name);
  }
  return text;
}

}  // namespace tilewise
