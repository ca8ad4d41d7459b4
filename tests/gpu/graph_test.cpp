// Invariant 9: calls on a GPU can be captured, replayed with other inputs, made on several streams and with
// another device current; what CUDA refuses becomes an error.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cases/data.h"
#include "cases/gpu.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::GpuMirror;
using cases::Op;
using cases::Role;

// These tests are about a GPU, whatever the others run on.
const int kDeviceIsChosen = setenv("TILEWISE_TEST_DEVICE", "cuda", 1);

constexpr cudaStreamCaptureMode kModes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal};

cudaStream_t stream_of(const GpuMirror& mirror) { return static_cast<cudaStream_t>(mirror.stream().handle); }

std::vector<Case> cases_of(Op op) {
  std::vector<Case> list = small_cases(op);
  for (Case& c : list) {
    if (cases::is_attention(op)) c.main.lengths = cases::Lengths::kVaried;
  }
  for (const Case& c : long_cases(op)) list.push_back(c);
  return list;
}

Plan plan_of(const CaseData& data, const std::string& kernel) {
  PlanOptions options;
  options.kernel = kernel;
  return cases::plan_case(data.args(), device(), options);
}

// A captured call of a mirror's tensors. Allocating while it is captured would fail.
class Graph {
 public:
  Graph(GpuMirror& mirror, const Plan& plan, cudaStreamCaptureMode mode) {
    EXPECT_EQ(cudaStreamBeginCapture(stream_of(mirror), mode), cudaSuccess);
    mirror.run(plan);
    EXPECT_EQ(cudaStreamEndCapture(stream_of(mirror), &graph_), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable_, graph_, 0), cudaSuccess);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(executable_));
    if (graph_ != nullptr) static_cast<void>(cudaGraphDestroy(graph_));
  }
  void replay(const GpuMirror& mirror) const {
    ASSERT_EQ(cudaGraphLaunch(executable_, stream_of(mirror)), cudaSuccess);
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// The inputs of `from`, in the memory of `to`. What both hold before the call is that of new outputs.
void take_inputs(CaseData& to, const CaseData& from) {
  to.reset_outputs();
  for (cases::Operand& o : to.operands()) {
    if (o.role != Role::kOutput) write_contents(o.view, cases::contents(from.view(o.name)));
  }
}

// The same shapes with other values, lengths, indices and positions; and with no key at all.
std::vector<CaseData> other_inputs(const Case& c) {
  std::vector<CaseData> others;
  for (const uint64_t seed : {7, 8}) {
    Case other = c;
    other.seed = seed;
    others.push_back(cases::make(other));
  }
  if (!cases::is_attention(c.op)) return others;
  others.push_back(others[0]);
  for (const char* lengths : {"topk_length", "extra_topk_length", "cache_seqlens"}) {
    if (others[2].has(lengths)) fill_elements(others[2].view(lengths), Fill::kZeros);
  }
  for (const char* lists : {"indices", "extra_indices"}) {
    if (others[2].has(lists)) fill_elements(others[2].view(lists), Fill::kNan);
  }
  return others;
}

class Graphs : public OfOperator {};

TEST_P(Graphs, ReplaysWithOtherInputsEqualEagerCalls) {
  for (const Case& c : cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    const CaseData first = data;
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      for (const cudaStreamCaptureMode mode : kModes) {
        take_inputs(data, first);
        const Plan plan = plan_of(data, kernel);
        GpuMirror mirror(data.args(), device(), plan.workspace_bytes());
        mirror.upload();
        const Graph graph(mirror, plan, mode);
        std::vector<CaseData> inputs = other_inputs(c);
        inputs.push_back(first);
        for (CaseData& other : inputs) {
          const Bits expected = bits_of(other, kernel);
          other.reset_outputs();
          take_inputs(data, other);
          mirror.upload();
          for (int repeat = 0; repeat < 2; ++repeat) graph.replay(mirror);
          EXPECT_EQ(mirror.download(), "");
          EXPECT_TRUE(same_bits(expected, data.output_bits()));
        }
      }
    });
  }
}

TEST_P(Graphs, StreamsAtTheSameTimeGiveTheSameBits) {
  constexpr int kCalls = 8;
  for (const Case& c : cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      const Bits expected = bits_of(data, kernel);
      const Plan plan = plan_of(data, kernel);
      CaseData left = cases::make(c);
      CaseData right = cases::make(c);
      GpuMirror on_left(left.args(), device(), plan.workspace_bytes());
      GpuMirror on_right(right.args(), device(), plan.workspace_bytes());
      on_left.upload();
      on_right.upload();
      for (int i = 0; i < kCalls; ++i) {
        on_left.run(plan);
        on_right.run(plan);
      }
      EXPECT_EQ(on_left.download(), "");
      EXPECT_EQ(on_right.download(), "");
      EXPECT_TRUE(same_bits(expected, left.output_bits()));
      EXPECT_TRUE(same_bits(expected, right.output_bits()));
    });
  }
}

// A capture that something else has broken: what follows on the stream is refused by CUDA.
TEST_P(Graphs, ALaunchThatCudaRefusesIsAnError) {
  CaseData data = cases::make(small_cases(GetParam())[0]);
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    const Bits expected = bits_of(data, kernel);
    data.reset_outputs();
    const Plan plan = plan_of(data, kernel);
    GpuMirror mirror(data.args(), device(), plan.workspace_bytes());
    mirror.upload();
    ASSERT_EQ(cudaStreamBeginCapture(stream_of(mirror), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    void* memory = nullptr;
    EXPECT_NE(cudaMalloc(&memory, 1), cudaSuccess);
    std::string text;
    try {
      mirror.run(plan);
    } catch (const CudaError& error) {
      text = error.what();
    }
    EXPECT_THAT(text, ::testing::AllOf(::testing::StartsWith(plan.op() + ": kernel " + kernel),
                                       ::testing::HasSubstr(" threads, "),
                                       ::testing::EndsWith("(cudaErrorStreamCaptureInvalidated)")));
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(stream_of(mirror), &graph), cudaSuccess);
    static_cast<void>(cudaGetLastError());

    // Nothing of it stays behind.
    mirror.run(plan);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_EQ(mirror.download(), "");
    EXPECT_TRUE(same_bits(expected, data.output_bits()));
  });
}

// Tensors that are said to be elsewhere are refused before anything is launched.
TEST_P(Graphs, TensorsOfTheHostAreRefused) {
  const CaseData data = cases::make(small_cases(GetParam())[0]);
  const Plan plan = cases::plan_case(data.args(), device());
  std::string text;
  try {
    std::visit([&](const auto& args) { run(plan, args, {}); }, data.args());
  } catch (const InvalidArgument& error) {
    text = error.what();
  }
  EXPECT_THAT(text, ::testing::AllOf(::testing::StartsWith(plan.op() + ": "),
                                     ::testing::EndsWith(" must be on cuda:0, got cpu")));
}

// Left out where there is one GPU.
TEST_P(Graphs, OtherDeviceIsCurrent) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  ASSERT_GE(count, 2);
  CaseData data = cases::make(small_cases(GetParam())[0]);
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    const Bits expected = bits_of(data, kernel);
    for (const int used : {0, 1}) {
      CaseData again = cases::make(data.what());
      const Device on = Device::cuda(used);
      PlanOptions options;
      options.kernel = kernel;
      const Plan plan = cases::plan_case(again.args(), on, options);
      GpuMirror mirror(again.args(), on, plan.workspace_bytes());
      mirror.upload();
      ASSERT_EQ(cudaSetDevice(1 - used), cudaSuccess);
      mirror.run(plan);
      int current = -1;
      EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, 1 - used);
      ASSERT_EQ(cudaSetDevice(used), cudaSuccess);
      EXPECT_EQ(mirror.download(), "");
      EXPECT_TRUE(same_bits(expected, again.output_bits()));
    }
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  });
}

INSTANTIATE_TEST_SUITE_P(All, Graphs, ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

}  // namespace
}  // namespace tilewise::testing
