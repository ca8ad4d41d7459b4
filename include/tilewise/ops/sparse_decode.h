// sparse_decode: attention over token lists in paged quantised KV caches.
#pragma once

#include <vector>

#include "tilewise/kv_format.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Arguments of sparse_decode. One softmax runs over the main and the extra cache together.
struct SparseDecodeArgs {
  TensorView q;         ///< bfloat16 [b, s_q, h_q, d_qk]
  TensorView kv_cache;  ///< [num_blocks, page, 1, bytes] uint8, int8 or float8_e4m3fn; record bf16: bfloat16
                        ///< [.., d_qk]
  TensorView indices;   ///< int32 [b, s_q, topk], block * page + offset; anything out of range is skipped
  float softmax_scale = 1.0f;
  Record record = Record::kAuto;  ///< kAuto: found from bytes and d_qk
  TensorView topk_length;         ///< optional int32 [b]; clamped to [0, topk]
  TensorView extra_cache;         ///< optional second cache with its own page size
  TensorView extra_indices;       ///< int32 [b, s_q, extra_topk]; given exactly when extra_cache is
  TensorView extra_topk_length;   ///< optional int32 [b]
  Record extra_record = Record::kAuto;
  TensorView attn_sink;          ///< optional float32 [h_q]
  bool batch_invariant = false;  ///< CPU kernels always are
  TensorView plan;  ///< optional, on a GPU: what fill_decode_plan made; not where batch_invariant

  TensorView out;  ///< bfloat16 [b, s_q, h_q, 512]
  TensorView lse;  ///< optional float32 [b, h_q, s_q], natural base
};

/// See dense_decode.h.
Plan plan(const SparseDecodeArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const SparseDecodeArgs& args, Workspace workspace, Stream stream = {});
void sparse_decode(const SparseDecodeArgs& args, const PlanOptions& options = {});
int64_t decode_plan_size(const SparseDecodeArgs& args);
void fill_decode_plan(const SparseDecodeArgs& args, const Device& device, Stream stream = {});
std::vector<KernelVerdict> explain(const SparseDecodeArgs& args, const Device& device);

}  // namespace tilewise
