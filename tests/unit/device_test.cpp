// Devices: their texts, and what this machine is found to have.
#include "tilewise/device.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <omp.h>

#include <fstream>
#include <iterator>
#include <string>

namespace tilewise {
namespace {

TEST(Device, Texts) {
  EXPECT_EQ(to_string(DeviceId{}), "cpu");
  EXPECT_EQ(to_string(DeviceId{DeviceType::kCuda, 2}), "cuda:2");
  EXPECT_EQ(to_string(Device{}), "cpu, 1 thread, baseline");
  Device device;
  device.threads = 2;
  device.cpu_features = kCpuBaseline | kCpuSse4 | kCpuAvx2 | kCpuAvx512 | kCpuAvx512Bf16 | kCpuAmxBf16;
  EXPECT_EQ(to_string(device), "cpu, 2 threads, baseline sse4 avx2 avx512 avx512_bf16 amx_bf16");
  device.id = {DeviceType::kCuda, 1};
  device.cuda_capability = 90;
  device.cuda_sms = 132;
  device.cuda_shared_bytes = 232448;
  EXPECT_EQ(to_string(device), "cuda:1, compute capability 9.0, 132 multiprocessors, 232448 B shared memory");
}

TEST(Device, Equality) {
  Device a;
  Device b;
  EXPECT_EQ(a, b);
  b.threads = 3;
  EXPECT_NE(a, b);
}

TEST(Device, CpuOfThisMachine) {
  const Device device = Device::cpu();
  EXPECT_EQ(device.id, DeviceId{});
  EXPECT_EQ(device.threads, omp_get_max_threads());
  const int64_t targets = hwy::SupportedTargets();
  EXPECT_EQ((device.cpu_features & kCpuSse4) != 0, (targets & HWY_SSE4) != 0);
  EXPECT_EQ((device.cpu_features & kCpuAvx2) != 0, (targets & HWY_AVX2) != 0);
  EXPECT_EQ((device.cpu_features & kCpuAvx512) != 0, (targets & HWY_AVX3) != 0);
  EXPECT_NE(device.cpu_features & kCpuBaseline, 0u);
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ((device.cpu_features & kCpuAvx512Bf16) != 0, cpuinfo.find(" avx512_bf16") != std::string::npos);
  EXPECT_EQ((device.cpu_features & kCpuAmxBf16) != 0, cpuinfo.find(" amx_bf16") != std::string::npos);
}

TEST(Device, FollowsTheSupportedTargets) {
  hwy::SetSupportedTargetsForTest(HWY_SSE4);
  const Device device = Device::cpu();
  hwy::SetSupportedTargetsForTest(0);
  EXPECT_EQ(device.cpu_features, kCpuBaseline | kCpuSse4);
}

TEST(Device, FollowsOpenMpsThreadCount) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  const Device device = Device::cpu();
  omp_set_num_threads(before);
  EXPECT_EQ(device.threads, 3);
}

}  // namespace
}  // namespace tilewise
