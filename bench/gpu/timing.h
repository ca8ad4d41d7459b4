// Times of calls on a GPU.
#pragma once

#include <functional>

namespace tilewise::bench {

struct GpuTimes {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
  double host_us = 0;  ///< median time that the host spends in one eager call
  int samples = 0;
};

/// Enqueues call number i on a stream (a cudaStream_t); i tells which inputs to take.
using GpuCall = std::function<void(int i, void* stream)>;

/// CUDA-event times of eager calls.
GpuTimes time_eager(const GpuCall& call);
/// Per call inside the replay of a graph of 10 calls, what the L2 cache held before thrown out.
GpuTimes time_in_graph(const GpuCall& call);

}  // namespace tilewise::bench
