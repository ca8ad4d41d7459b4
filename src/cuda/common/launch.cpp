#include "cuda/common/launch.h"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

constexpr int kSharedWithoutAsking = 48 * 1024;

/// More shared memory than 48 KB has to be asked for, once a kernel and device.
template <class What>
void allow_shared_memory(const void* kernel, int bytes, const What& describe_launch) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) {
    check_cuda(status, describe_launch());
  }
  const std::lock_guard lock(mutex);
  if (allowed.contains({kernel, device})) return;
  const std::string what = describe_launch();
  int most = 0;
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), what);
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), what);
  const int dynamic = most - static_cast<int>(attributes.sharedSizeBytes);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic),
             what + fmt::format(" asked for {} B of shared memory", bytes));
  allowed.emplace(kernel, device);
}

}  // namespace

void check_cuda(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  // A failed launch must not be reported a second time by whoever calls CUDA next.
  static_cast<void>(cudaGetLastError());
  throw CudaError(fmt::format("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status)));
}

std::optional<std::string> device_refusal(const Device& device) {
  constexpr int32_t kLeastCapability = 80;
  if (device.id.type != DeviceType::kCuda) return "runs on CUDA devices, not on " + to_string(device.id);
  if (device.cuda_capability < kLeastCapability) {
    return fmt::format("needs compute capability 8.0, the device has {}.{}", device.cuda_capability / 10,
                       device.cuda_capability % 10);
  }
  if (device.cuda_sms < 1) return fmt::format("needs a multiprocessor, the device has {}", device.cuda_sms);
  return std::nullopt;
}

DeviceGuard::DeviceGuard(int32_t index) {
  cudaError_t status = cudaGetDevice(&previous_);
  if (status == cudaSuccess && previous_ == index) return;
  if (status == cudaSuccess) status = cudaSetDevice(index);
  if (status != cudaSuccess) check_cuda(status, fmt::format("cuda:{}", index));
  changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (changed_) static_cast<void>(cudaSetDevice(previous_));
}

void launch_kernel(const Launch& launch, const void* kernel, void* params) {
  if (launch.blocks == 0) return;
  const auto what = [&] {
    return fmt::format("{}: kernel {}, {} blocks of {} threads, {} B shared memory", launch.op, launch.name,
                       launch.blocks, launch.threads, launch.shared_bytes);
  };
  if (launch.blocks > std::numeric_limits<int32_t>::max()) {
    throw CudaError(what() + ": more blocks than a launch can have");
  }
  if (launch.shared_bytes > kSharedWithoutAsking) allow_shared_memory(kernel, launch.shared_bytes, what);
  void* arguments[] = {params};
  const auto blocks = static_cast<unsigned>(launch.blocks);
  const auto threads = static_cast<unsigned>(launch.threads);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
  config.stream = launch.stream;
  config.attrs = &early;
  config.numAttrs = launch.early ? 1 : 0;
  const cudaError_t status = cudaLaunchKernelExC(&config, kernel, arguments);
  if (status != cudaSuccess) check_cuda(status, what());
}

}  // namespace tilewise::cuda
