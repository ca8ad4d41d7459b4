// The one problem that dense_decode, sparse_decode, sparse_prefill_fwd and the fused operators come down to
// after their checks: query rows, one or two KV caches, a mask or token lists, an epilogue.
#pragma once

#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "tilewise/kv_format.h"
#include "tilewise/mask.h"
#include "tilewise/tensor.h"
#include "visit/query_tile.h"
#include "visit/rules.h"

namespace tilewise {

// Of the fused operators.
inline constexpr int32_t kFusedDim = 512;  // of Q, of keys and of the output
inline constexpr int32_t kRopeDim = 64;    // the last of them are rotated
inline constexpr int32_t kCastGroup = 32;  // output channels that share an exponent byte

enum class Epilogue : int32_t {
  kStore,     // out / sum in the output dtype
  kFp8,       // inverse RoPE, groups of 32 channels cast to e4m3 (and optionally the bf16 values)
  kPartials,  // fp32 partials per split, inverse RoPE applied, base-2 lse
};

/// One KV cache. Unpaged rows are pages of one row. `present` false: no such cache.
struct CacheShape {
  bool present = false;
  Record record = Record::kBf16;
  DType dtype = DType::kBF16;  // of a cache of plain rows (record kBf16): bf16, fp16 or e4m3
  int64_t num_blocks = 0;
  int64_t page = 1;
  int64_t width = 0;  // sparse: entries in a token's list; dense: blocks in a request's table
  bool has_length = false;

  bool operator==(const CacheShape&) const = default;
};

/// Sizes and options, plain data that kernels take as it is.
struct ForwardSizes {
  int64_t batch = 1;  // requests; 1 for prefill and fused
  int64_t s_q = 0;    // query tokens a request
  int64_t h_q = 0;
  int64_t h_kv = 1;
  int64_t d_qk = 0;
  int64_t d_v = 0;
  DType q_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  float softmax_scale = 1.0f;

  bool dense = false;  // keys by block table and length; otherwise by token lists
  CacheShape main;
  CacheShape extra;  // sparse alone
  bool causal = false;
  Window window;

  bool has_sink = false;       // scales the output
  bool has_sink_bias = false;  // joins the softmax
  DType sink_bias_dtype = DType::kFP32;
  int64_t indexer_topk = 0;

  bool fused = false;  // permuted q, RoPE on q and on the output
  int64_t n_groups = 1;
  bool q_norm = false;
  float q_norm_eps = 0.0f;
  int64_t max_pos = 0;

  Epilogue epilogue = Epilogue::kStore;
  int64_t num_splits = 1;  // of kPartials

  bool batch_invariant = true;  // keys are cut into pieces without regard to the batch
  bool planned = false;         // keys are cut as the caller's plan says

  bool operator==(const ForwardSizes&) const = default;
};

struct ForwardShape : ForwardSizes {
  std::string op;

  bool operator==(const ForwardShape&) const = default;
};

std::string describe(const ForwardShape& shape);

/// A shape's query tiles of at most `tile_rows` rows.
inline visit::QueryTiles query_tiles(const ForwardShape& shape, int64_t tile_rows) {
  return {.batch = shape.batch,
          .groups = shape.dense ? 1 : shape.s_q,
          .tokens = shape.dense ? shape.s_q : 1,
          .h_kv = shape.h_kv,
          .heads = shape.h_q / shape.h_kv,
          .tile_rows = tile_rows};
}

/// Pointers and strides of one cache. Index strides count elements, the others bytes.
struct CacheTensors {
  const uint8_t* base = nullptr;
  int64_t block_stride = 0;
  int64_t row_stride = 0;   // plain rows alone; records are contiguous inside a page
  int64_t head_stride = 0;  // dense alone: from one KV head to the next
  // sparse: indices [batch, s_q, width]; dense: block_table [batch, width] (index_stride_s is 0)
  const int32_t* index = nullptr;
  int64_t index_stride_b = 0;
  int64_t index_stride_s = 0;
  // sparse: topk_length, dense: cache_seqlens; per request or per token, whose stride is then 0 for the other
  const int32_t* length = nullptr;
  int64_t length_stride_b = 0;
  int64_t length_stride_s = 0;
};

/// The keys of a token that its length leaves of `limit`.
TW_HD inline int64_t clamped_length(const CacheShape& shape, const CacheTensors& cache, int64_t limit,
                                    int64_t request, int64_t token) {
  if (!shape.present) return 0;
  if (cache.length == nullptr) return limit;
  const int64_t length = cache.length[request * cache.length_stride_b + token * cache.length_stride_s];
  return visit::smaller(visit::larger(length, 0), limit);
}

/// An output or input with one value or one vector a (request, token, head); strides in elements.
template <class T>
struct RowTensor {
  T* data = nullptr;  // null: absent
  int64_t stride_b = 0;
  int64_t stride_s = 0;
  int64_t stride_h = 0;

  TW_HD constexpr T* at(int64_t b, int64_t s, int64_t h) const {
    return data + b * stride_b + s * stride_s + h * stride_h;
  }
};

/// The outputs of the epilogues that cast.
struct Fp8Tensors {
  uint8_t* out_fp8 = nullptr;  // [s_q, n_groups, h_q / n_groups * 512]; null: absent
  int32_t* out_sf = nullptr;   // strides (sf_stride_s, sf_stride_g, sf_stride_c)
  int64_t sf_stride_s = 1;
  int64_t sf_stride_g = 0;
  int64_t sf_stride_c = 0;
};

/// Pointers and strides, plain data too.
struct ForwardTensors : Fp8Tensors {
  // [b, s_q, h_q, d_qk] of q_dtype (1 or 2 bytes an element, strides in elements); fused: [s_q, h_q * 512]
  // permuted, stride_h unused.
  const void* q = nullptr;
  int64_t q_stride_b = 0;
  int64_t q_stride_s = 0;
  int64_t q_stride_h = 0;

  CacheTensors main;
  CacheTensors extra;

  const float* sink = nullptr;  // [h_q], stride in elements
  int64_t sink_stride = 1;
  const void* sink_bias = nullptr;  // [h_q] of sink_bias_dtype
  int64_t sink_bias_stride = 1;
  const float* descale_q = nullptr;
  const float* descale_k = nullptr;

  const int32_t* positions = nullptr;  // [s_q]
  int64_t positions_stride = 1;
  const float* cos_sin = nullptr;  // [max_pos, 64]
  int64_t cos_sin_stride = 64;

  const int32_t* plan = nullptr;  // decode_plan.h

  RowTensor<uint8_t> out;        // kStore: of out_dtype, kPartials: fp32; strides in BYTES
  RowTensor<uint16_t> out_bf16;  // kFp8: the values before the cast
  RowTensor<float> max_logits;
  RowTensor<float> lse;
  RowTensor<float> lse_indexer;
  int64_t split_stride_out = 0;  // kPartials: from one split to the next, in BYTES
  int64_t split_stride_lse = 0;  // in elements
};

struct ForwardProblem : ForwardTensors {
  ForwardShape shape;
};

/// How a forward kernel cuts its problem; offsets are those of the workspace ledger.
struct ForwardPlan {
  int32_t config = 0;        // row of the backend's table of tile shapes, where it has one
  int64_t min_piece = 0;     // CUDA: KV tiles of a piece at least
  int64_t tile_rows = 0;     // query rows that share one decoded KV tile
  int64_t tile_keys = 0;     // keys decoded at a time
  int64_t num_tiles = 0;     // query tiles in the whole problem
  int64_t wave_tiles = 0;    // query tiles that wait for their merge together; 0: none is split over threads
  int64_t max_segments = 1;  // most pieces that one row's keys are cut into
  int64_t items = 0;         // CUDA: pieces of all rows together, where the caller has a plan
  bool early = false;        // CUDA: kernels are brought up while the ones before them end
  int threads = 1;           // that have scratch memory
  int64_t slots = 0;         // CUDA: for the partial results of pieces
  size_t cut = 0;            // CUDA: a query tile's first slot and number of pieces
  int64_t merge_blocks = 0;  // CUDA: where the caller has a plan
  size_t scratch = 0;
  size_t scratch_bytes = 0;  // CPU: of a thread
  size_t partials = 0;       // wave_tiles * max_segments partial results
};
std::string describe(const ForwardPlan& plan);

struct Forward {
  using Shape = ForwardShape;
  using Problem = ForwardProblem;
  using KernelPlan = ForwardPlan;
};

}  // namespace tilewise
