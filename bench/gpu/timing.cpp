#include "bench/gpu/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/gpu/inputs.h"
#include "cuda/common/launch.h"

namespace tilewise::bench {
namespace {

using cuda::check_cuda;

constexpr int kCallsOfGraph = 10;
constexpr int kWarmUps = 3;
constexpr int kReplays = 20;
constexpr int kHostCalls = 60;
constexpr int kHostCallsInFlight = 10;
constexpr int kMostCalls = 60;
constexpr int kLeastCalls = 15;
constexpr double kEagerSeconds = 0.5;
constexpr int64_t kFlushBytes = int64_t{256} << 20;  // several times the L2 cache

class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "an event"); }
  double microseconds_since(const Event& start) const {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, start.event_, event_), "an event");
    return 1000.0 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class OwnedStream {
 public:
  OwnedStream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  operator cudaStream_t() const { return stream_; }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_), "the calls"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A captured piece of work.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& enqueue) {
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capturing");
    enqueue();
    check_cuda(cudaStreamEndCapture(stream, &graph_), "capturing");
    check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "instantiating a graph");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    static_cast<void>(cudaGraphExecDestroy(executable_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }
  void launch(cudaStream_t stream) const { check_cuda(cudaGraphLaunch(executable_, stream), "a graph"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

GpuTimes summary(const std::vector<double>& us, double host_us) {
  const auto [least, most] = std::minmax_element(us.begin(), us.end());
  return {median(us), *least, *most, host_us, static_cast<int>(us.size())};
}

/// The queue never fills up: a launch would wait for it.
double host_microseconds(const GpuCall& call, const OwnedStream& stream) {
  std::vector<double> us;
  for (int i = 0; i < kHostCalls; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call(i, stream);
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    if (i % kHostCallsInFlight == kHostCallsInFlight - 1) stream.wait();
  }
  stream.wait();
  return median(us);
}

}  // namespace

GpuTimes time_eager(const GpuCall& call) {
  const OwnedStream stream;
  const Event first;
  const Event last;
  call(0, stream);
  first.record(stream);
  for (int i = 0; i < kWarmUps; ++i) call(i, stream);
  last.record(stream);
  stream.wait();
  const double about = last.microseconds_since(first) / kWarmUps;
  const int calls =
      std::clamp(static_cast<int>(kEagerSeconds * 1e6 / std::max(about, 1.0)), kLeastCalls, kMostCalls);
  std::vector<Event> events(static_cast<size_t>(calls) + 1);
  events[0].record(stream);
  for (int i = 0; i < calls; ++i) {
    call(i, stream);
    events[static_cast<size_t>(i) + 1].record(stream);
  }
  stream.wait();
  std::vector<double> us;
  for (size_t i = 1; i < events.size(); ++i) us.push_back(events[i].microseconds_since(events[i - 1]));
  return summary(us, host_microseconds(call, stream));
}

GpuTimes time_in_graph(const GpuCall& call) {
  const OwnedStream stream;
  for (int i = 0; i < kCallsOfGraph; ++i) call(i, stream);
  stream.wait();
  const Graph graph(stream, [&] {
    for (int i = 0; i < kCallsOfGraph; ++i) call(i, stream);
  });
  const DeviceBytes flush(kFlushBytes);
  std::vector<Event> starts(kReplays);
  std::vector<Event> ends(kReplays);
  for (int i = 0; i < kWarmUps; ++i) graph.launch(stream);
  for (size_t i = 0; i < kReplays; ++i) {
    check_cuda(cudaMemsetAsync(flush.data(), static_cast<int>(i), kFlushBytes, stream), "flushing the cache");
    starts[i].record(stream);
    graph.launch(stream);
    ends[i].record(stream);
  }
  stream.wait();
  std::vector<double> us;
  for (size_t i = 0; i < kReplays; ++i) us.push_back(ends[i].microseconds_since(starts[i]) / kCallsOfGraph);
  return summary(us, host_microseconds(call, stream));
}

}  // namespace tilewise::bench
