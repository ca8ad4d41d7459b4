// What a GPU of this machine can do.
#include <fmt/format.h>

#include "cuda/common/launch.h"
#include "tilewise/device.h"

namespace tilewise {

Device Device::cuda(int32_t index) {
  const auto attribute = [index](cudaDeviceAttr which) {
    int value = 0;
    cuda::check_cuda(cudaDeviceGetAttribute(&value, which, index), fmt::format("cuda:{}", index));
    return value;
  };
  Device device;
  device.id = {DeviceType::kCuda, index};
  device.cpu_features = 0;
  device.cuda_capability =
      10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
  device.cuda_sms = attribute(cudaDevAttrMultiProcessorCount);
  device.cuda_shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return device;
}

}  // namespace tilewise
