// The problem that dense_prefill and block_sparse_prefill come down to after their checks: sequences laid end
// to end, a mask, perhaps a selection of key blocks; forward and backward.
#pragma once

#include <cstdint>
#include <string>

#include "ops/forward.h"
#include "tilewise/mask.h"
#include "tilewise/tensor.h"

namespace tilewise {

struct VarlenShape {
  std::string op;
  int64_t batch = 0;  // sequences
  int64_t total_q = 0;
  int64_t total_k = 0;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  int64_t h_q = 0;
  int64_t h_kv = 1;
  int64_t d_qk = 0;
  int64_t d_v = 0;
  DType dtype = DType::kBF16;
  float softmax_scale = 1.0f;
  bool causal = false;
  Window window;
  bool has_sink_bias = false;
  DType sink_bias_dtype = DType::kFP32;

  bool selected = false;  // only the selection's blocks; the members below say nothing otherwise
  bool selection_per_head = false;
  int64_t selection_rows = 0;
  int64_t selection_width = 0;
  int64_t q_block = 0;
  int64_t kv_block = 0;

  bool operator==(const VarlenShape&) const = default;
};
std::string describe(const VarlenShape& shape);

/// Pointers and strides, in elements.
struct VarlenTensors {
  RowTensor<const uint16_t> q;  // (-, token, head)
  RowTensor<const uint16_t> k;
  RowTensor<const uint16_t> v;
  const int32_t* cu_q = nullptr;  // [batch + 1]
  int64_t cu_q_stride = 1;
  const int32_t* cu_k = nullptr;
  int64_t cu_k_stride = 1;
  const int32_t* q2k = nullptr;  // ([h_q,] rows, n)
  int64_t q2k_stride_h = 0;      // 0 where all heads share the selection
  int64_t q2k_stride_row = 0;
  const void* sink_bias = nullptr;  // [h_q]
  int64_t sink_bias_stride = 1;
};

struct VarlenForwardProblem : VarlenTensors {
  VarlenShape shape;
  RowTensor<uint16_t> out;
  RowTensor<float> lse;
};

struct VarlenBackwardShape : VarlenShape {
  bool deterministic = true;

  bool operator==(const VarlenBackwardShape&) const = default;
};
std::string describe(const VarlenBackwardShape& shape);

struct VarlenBackwardProblem : VarlenTensors {
  VarlenBackwardShape shape;
  RowTensor<const uint16_t> d_out;
  RowTensor<const uint16_t> out;
  RowTensor<const float> lse;
  RowTensor<uint16_t> dq;
  RowTensor<uint16_t> dk;
  RowTensor<uint16_t> dv;
  void* d_sink = nullptr;  // [h_q] of sink_bias_dtype
  int64_t d_sink_stride = 1;
};

/// How a kernel cuts its problem; offsets are those of the workspace ledger.
struct VarlenPlan {
  int64_t tile_rows = 0;  // query rows of a tile
  int64_t tile_keys = 0;
  int threads = 1;
  size_t sequences = 0;
  size_t scratch = 0;  // of each thread
  size_t scratch_bytes = 0;
  size_t shared = 0;     // the backward's rows and dQ, of all query tiles
  size_t selection = 0;  // the backward's lists
};
std::string describe(const VarlenPlan& plan);

struct VarlenForward {
  using Shape = VarlenShape;
  using Problem = VarlenForwardProblem;
  using KernelPlan = VarlenPlan;
};
struct VarlenBackward {
  using Shape = VarlenBackwardShape;
  using Problem = VarlenBackwardProblem;
  using KernelPlan = VarlenPlan;
};

}  // namespace tilewise
