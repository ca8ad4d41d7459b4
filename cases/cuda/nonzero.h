// Device memory that must hold zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tilewise::cases {

// Adds the number of 16-byte words in [first, first + bytes) that are not all zeros to *count, device memory
// too. Both ends are multiples of 16.
cudaError_t count_nonzero(const void* first, int64_t bytes, unsigned long long* count, cudaStream_t stream);

}  // namespace tilewise::cases
