#include "cases/cuda/nonzero.h"

namespace tilewise::cases {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 1056;

__global__ void count_words(const uint4* words, int64_t n, unsigned long long* count) {
  unsigned long long found = 0;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * kBlocks) {
    const uint4 w = words[i];
    found += (w.x | w.y | w.z | w.w) != 0 ? 1 : 0;
  }
  if (found > 0) atomicAdd(count, found);
}

}  // namespace

cudaError_t count_nonzero(const void* first, int64_t bytes, unsigned long long* count, cudaStream_t stream) {
  count_words<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(first), bytes / 16, count);
  return cudaGetLastError();
}

}  // namespace tilewise::cases
