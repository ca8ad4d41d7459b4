// Launches and their errors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <string>

#include "tilewise/device.h"

namespace tilewise::cuda {

/// Throws CudaError "<what>: <CUDA's text>" unless the status is success.
void check_cuda(cudaError_t status, const std::string& what);

/// Why kernels of this backend do not run on a device; nothing where they do.
std::optional<std::string> device_refusal(const Device& device);

/// Makes a device the current one of this thread while it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// One kernel launch. `op` and `name` go into the error's text.
struct Launch {
  const char* op;
  const char* name;
  int64_t blocks;
  int threads;
  int shared_bytes = 0;
  cudaStream_t stream = nullptr;
  bool early = false;  // the kernel calls await_last_kernel(): it may be brought up before that is done
};

/// Launches kernel(params); blocks 0: nothing. Throws CudaError with operator, kernel and launch shape.
void launch_kernel(const Launch& launch, const void* kernel, void* params);

template <class Params>
void launch(const Launch& launch, void (*kernel)(Params), const Params& params) {
  launch_kernel(launch, reinterpret_cast<const void*>(kernel), const_cast<Params*>(&params));
}

}  // namespace tilewise::cuda
