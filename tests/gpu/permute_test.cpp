// The weight permutations on a GPU move the same bytes as on the CPU, and no others.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cases/memory.h"
#include "cases/random.h"
#include "tilewise/tilewise.h"

namespace tilewise::testing {
namespace {

const DeviceId kGpu{DeviceType::kCuda, 0};

// Memory on the host and as much on the GPU, which begins with the same bytes.
class Twin {
 public:
  Twin(const char* name, int64_t bytes)
      : host_(static_cast<size_t>(bytes)), device_(static_cast<size_t>(bytes)) {
    const cases::Stream64 random = cases::Stream64{5}.child(name);
    for (size_t i = 0; i < host_.size(); ++i) host_[i] = static_cast<uint8_t>(random.bits(i));
    EXPECT_EQ(cudaMalloc(&memory_, host_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;
  ~Twin() { static_cast<void>(cudaFree(memory_)); }

  TensorView on_host(DType type, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
    return {host_.data(), type, shape, strides};
  }
  TensorView on_gpu(DType type, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides) const {
    return {memory_, type, shape, strides, kGpu};
  }
  // Gaps included.
  bool equal() {
    EXPECT_EQ(cudaMemcpy(device_.data(), memory_, device_.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return device_ == host_;
  }

 private:
  std::vector<uint8_t> host_;
  std::vector<uint8_t> device_;
  void* memory_ = nullptr;
};

class SideStream {
 public:
  SideStream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

  // Calls are captured, which forbids them to allocate or to wait, and replayed once.
  template <class Call>
  void run(const Call& call) const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    call(Stream{stream_});
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    static_cast<void>(cudaGraphExecDestroy(executable));
    static_cast<void>(cudaGraphDestroy(graph));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

void expect_q_b_proj(int64_t h_q, int64_t d_q, int64_t r, int64_t granularity) {
  SCOPED_TRACE(std::to_string(h_q) + " heads of " + std::to_string(d_q));
  const int64_t rows = h_q * d_q;
  const int64_t columns = r / granularity / 4;
  const int64_t pitch_in = rows + 3;
  const int64_t pitch_out = rows + 5;
  Twin weight("weight", rows * r);
  Twin scales("scales", columns * pitch_in * 4);
  Twin weight_out("weight_out", rows * r);
  Twin scales_out("scales_out", columns * pitch_out * 4);
  const auto args = [&](auto view) {
    PermuteQBProjArgs a;
    a.weight = view(weight, DType::kE4M3, {rows, r}, {r, 1});
    a.scales = view(scales, DType::kInt32, {rows, columns}, {1, pitch_in});
    a.h_q = h_q;
    a.d_q = d_q;
    a.weight_out = view(weight_out, DType::kE4M3, {rows, r}, {r, 1});
    a.scales_out = view(scales_out, DType::kInt32, {rows, columns}, {1, pitch_out});
    return a;
  };
  using Sizes = std::vector<int64_t>;
  permute_q_b_proj(args([](Twin& t, DType type, const Sizes& shape, const Sizes& strides) {
    return t.on_host(type, shape, strides);
  }));
  const SideStream side;
  side.run([&](Stream stream) {
    permute_q_b_proj(args([](const Twin& t, DType type, const Sizes& shape, const Sizes& strides) {
                       return t.on_gpu(type, shape, strides);
                     }),
                     stream);
  });
  for (Twin* twin : {&weight, &scales, &weight_out, &scales_out}) EXPECT_TRUE(twin->equal());
}

TEST(PermuteOnGpu, QBProj) {
  expect_q_b_proj(1, 16, 128, 32);
  expect_q_b_proj(3, 64, 512, 128);
  expect_q_b_proj(4, 48, 1536, 32);
  expect_q_b_proj(128, 512, 1536, 128);
}

void expect_wv_proj(int64_t groups, int64_t n, int64_t size) {
  SCOPED_TRACE(std::to_string(groups) + " groups of " + std::to_string(size));
  const int64_t width = size * 512;
  const int64_t words = width / 128;
  Twin weight("weight", groups * n * width);
  Twin scales("scales", groups * n * words * 4);
  Twin weight_out("weight_out", groups * n * width);
  Twin scales_out("scales_out", groups * n * words * 4);
  const auto args = [&](auto view) {
    PermuteWvProjArgs a;
    a.weight = view(weight, DType::kE4M3, {groups, n, width}, {n * width, width, 1});
    a.scales = view(scales, DType::kInt32, {groups, n, words}, {n * words, words, 1});
    a.group_size = size;
    a.weight_out = view(weight_out, DType::kE4M3, {groups, n, width}, {n * width, width, 1});
    a.scales_out = view(scales_out, DType::kInt32, {groups, n, words}, {n * words, words, 1});
    return a;
  };
  using Sizes = std::vector<int64_t>;
  permute_wv_proj(args([](Twin& t, DType type, const Sizes& shape, const Sizes& strides) {
    return t.on_host(type, shape, strides);
  }));
  const SideStream side;
  side.run([&](Stream stream) {
    permute_wv_proj(args([](const Twin& t, DType type, const Sizes& shape, const Sizes& strides) {
                      return t.on_gpu(type, shape, strides);
                    }),
                    stream);
  });
  for (Twin* twin : {&weight, &scales, &weight_out, &scales_out}) EXPECT_TRUE(twin->equal());
}

TEST(PermuteOnGpu, WvProj) {
  for (const int64_t size : {1, 3, 8}) expect_wv_proj(2, 5, size);
  expect_wv_proj(16, 1024, 8);
  expect_wv_proj(0, 5, 1);
}

}  // namespace
}  // namespace tilewise::testing
