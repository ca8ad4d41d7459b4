// The problems of the operators that are no attention: merging partial results, and moving KV rows into cache
// records and back.
#pragma once

#include <cstdint>
#include <string>

#include "ops/forward.h"
#include "tilewise/kv_format.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Of kernels that need neither tiles nor workspace.
struct RowsPlan {
  int threads = 1;
};
inline std::string describe(const RowsPlan&) { return "rows over threads"; }

struct CombineShape {
  std::string op;
  int64_t num_partials = 0;
  int64_t s_q = 0;
  int64_t h_q = 0;
  int64_t d_v = 0;
  DType partial_dtype = DType::kFP32;
  DType out_dtype = DType::kBF16;
  bool base2 = false;
  bool has_sink = false;
  bool fp8 = false;  // combine_partials_fused
  int64_t n_groups = 1;

  bool operator==(const CombineShape&) const = default;
};
std::string describe(const CombineShape& shape);

struct CombineProblem : Fp8Tensors {
  CombineShape shape;
  RowTensor<const uint8_t> partials;  // [n (as b), s_q, h_q, d_v]; strides in BYTES
  RowTensor<const float> partial_lse;
  const float* sink = nullptr;
  int64_t sink_stride = 1;
  RowTensor<uint8_t> out;  // strides in BYTES
  RowTensor<float> lse;
};

struct Combine {
  using Shape = CombineShape;
  using Problem = CombineProblem;
  using KernelPlan = RowsPlan;
};

enum class KvMove : int32_t { kQuantize, kDequantize, kAppend };

struct KvMoveShape {
  std::string op;
  KvMove move = KvMove::kQuantize;
  Record record = Record::kBf16;
  int64_t n = 0;  // rows of x: [n, d]
  int64_t d = 0;
  int64_t num_blocks = 0;
  int64_t page = 1;
  DType slot_dtype = DType::kInt32;  // append alone

  bool operator==(const KvMoveShape&) const = default;
};
std::string describe(const KvMoveShape& shape);

struct KvMoveProblem {
  KvMoveShape shape;
  uint16_t* x = nullptr;  // bf16 bits; written by dequantize alone
  int64_t x_stride = 0;   // elements
  uint8_t* pages = nullptr;
  int64_t block_stride = 0;     // bytes
  const void* slots = nullptr;  // append alone
  int64_t slot_stride = 1;
};

struct KvMoveFamily {
  using Shape = KvMoveShape;
  using Problem = KvMoveProblem;
  using KernelPlan = RowsPlan;
};

}  // namespace tilewise
