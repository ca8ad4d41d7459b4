// Where a tensor lies (DeviceId) and what the machine there can do (Device).
#pragma once

#include <cstdint>
#include <string>

namespace tilewise {

enum class DeviceType : int32_t { kCpu = 0, kCuda = 1 };

/// A place for memory: a kind of device and its number (always 0 for the CPU).
struct DeviceId {
  DeviceType type = DeviceType::kCpu;
  int32_t index = 0;

  bool operator==(const DeviceId&) const = default;
};

/// "cpu" or "cuda:<index>".
std::string to_string(DeviceId id);

/// Instruction sets that the CPU kernels are built for; bits of Device::cpu_features.
enum CpuFeature : uint32_t {
  kCpuBaseline = 1u << 0,  ///< whatever the compiler may assume everywhere
  kCpuSse4 = 1u << 1,
  kCpuAvx2 = 1u << 2,        ///< AVX2, FMA, F16C
  kCpuAvx512 = 1u << 3,      ///< AVX-512 F, BW, CD, DQ, VL
  kCpuAmxBf16 = 1u << 4,     ///< AMX's tile registers and bf16 products, with AVX-512 BF16
  kCpuAvx512Bf16 = 1u << 5,  ///< AVX-512's bf16 products
};

/// What plan() needs to know of a device. A plain value: it can be made by hand to plan for another machine.
struct Device {
  DeviceId id;
  uint32_t cpu_features = kCpuBaseline;
  int32_t threads = 1;  ///< CPU threads that an operator uses unless PlanOptions says otherwise
  // The next three are 0 for a CPU.
  int32_t cuda_capability = 0;    ///< compute capability: 90 for 9.0
  int32_t cuda_sms = 0;           ///< multiprocessors
  int32_t cuda_shared_bytes = 0;  ///< shared memory that one block of threads may have

  /// This machine's CPU, with its features asked for at run time and OpenMP's thread limit.
  static Device cpu();
  /// A GPU of this machine. Throws Error when the library was built without CUDA, and CudaError when there is
  /// no such GPU.
  static Device cuda(int32_t index = 0);

  bool operator==(const Device&) const = default;
};

/// One printable line, for example "cpu, 2 threads, baseline sse4 avx2 avx512" or
/// "cuda:0, compute capability 9.0, 132 multiprocessors, 232448 B shared memory".
std::string to_string(const Device& device);

}  // namespace tilewise
