// The problem that sparse_prefill_bwd comes down to after its checks.
#pragma once

#include <cstdint>
#include <string>

#include "ops/forward.h"
#include "tilewise/tensor.h"

namespace tilewise {

struct SparseBackwardShape {
  std::string op;
  int64_t s_q = 0;
  int64_t h_q = 0;
  int64_t s_kv = 0;
  int64_t d_qk = 0;
  int64_t d_v = 0;
  int64_t topk = 0;
  bool has_length = false;
  float softmax_scale = 1.0f;
  bool has_sink_bias = false;
  DType sink_bias_dtype = DType::kFP32;
  bool has_kl_target = false;
  bool deterministic = true;

  bool operator==(const SparseBackwardShape&) const = default;
};
std::string describe(const SparseBackwardShape& shape);

/// Pointers and strides, in elements.
struct SparseBackwardProblem {
  SparseBackwardShape shape;
  RowTensor<const uint16_t> d_out;  // (-, token, head)
  RowTensor<const uint16_t> q;
  RowTensor<const uint16_t> out;
  RowTensor<const float> lse;
  const uint16_t* kv = nullptr;  // [s_kv, d_qk]
  int64_t kv_stride = 0;
  const int32_t* indices = nullptr;  // [s_q, topk]
  int64_t indices_stride = 0;
  const int32_t* length = nullptr;  // [s_q]; null: all of topk
  int64_t length_stride = 1;
  const void* sink_bias = nullptr;  // [h_q] of sink_bias_dtype
  int64_t sink_bias_stride = 1;
  RowTensor<uint16_t> dq;
  uint16_t* dkv = nullptr;  // [s_kv, d_qk]
  int64_t dkv_stride = 0;
  void* d_sink = nullptr;  // [h_q] of sink_bias_dtype
  int64_t d_sink_stride = 1;
  float* kl_target = nullptr;  // [s_q, topk]; null: not wanted
  int64_t kl_target_stride = 0;
};

/// How a kernel cuts its problem; offsets are those of the workspace ledger.
struct SparseBackwardPlan {
  int64_t tile_rows = 0;  // heads of a tile
  int64_t tile_keys = 0;
  int threads = 1;
  size_t shared = 0;
  size_t scratch = 0;  // of each thread
  size_t scratch_bytes = 0;
};
std::string describe(const SparseBackwardPlan& plan);

struct SparseBackward {
  using Shape = SparseBackwardShape;
  using Problem = SparseBackwardProblem;
  using KernelPlan = SparseBackwardPlan;
};

}  // namespace tilewise
