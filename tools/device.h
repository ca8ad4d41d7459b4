// The option --device.
#pragma once

#include <string>

#include "tilewise/device.h"

namespace tilewise::tools {

// "cpu", "cuda" (the first GPU) or "cuda:<number>". Throws UsageError on anything else, Error where the build
// has no CUDA kernels, and CudaError where there is no such GPU.
Device device_named(const std::string& name);

}  // namespace tilewise::tools
