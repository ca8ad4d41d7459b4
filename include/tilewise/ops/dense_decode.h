// dense_decode: latent attention of new tokens over a paged KV cache.
#pragma once

#include <vector>

#include "tilewise/mask.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Arguments of dense_decode. V is the first d_v columns of K.
/// Two dtype rows: q and k_cache both bfloat16 or both float16 (out the same), or both float8_e4m3fn with
/// descale_q and descale_k given (out bfloat16).
struct DenseDecodeArgs {
  TensorView q;              ///< [b, s_q, h_q, d_qk]
  TensorView k_cache;        ///< [num_blocks, page, h_kv, d_qk]; h_q a multiple of h_kv
  TensorView block_table;    ///< int32 [b, max_blocks]; an entry out of range makes its keys invalid
  TensorView cache_seqlens;  ///< int32 [b]; clamped to [0, max_blocks * page]
  float softmax_scale = 1.0f;
  int64_t d_v = 512;             ///< 512, with d_qk 576 or 512
  bool causal = false;           ///< query i of s_q sees keys <= len - s_q + i
  Window window;                 ///< bottom-right aligned; right must be -1 or 0 where causal
  TensorView attn_sink;          ///< optional float32 [h_q]
  TensorView descale_q;          ///< float32 [1], float8 row only
  TensorView descale_k;          ///< float32 [1], float8 row only
  bool batch_invariant = false;  ///< CPU kernels always are
  TensorView plan;  ///< optional, on a GPU: what fill_decode_plan made; not where batch_invariant

  TensorView out;  ///< [b, s_q, h_q, d_v]
  TensorView lse;  ///< optional float32 [b, h_q, s_q], natural base
};

/// Checks the arguments and picks a kernel. Throws InvalidArgument.
Plan plan(const DenseDecodeArgs& args, const Device& device, const PlanOptions& options = {});
/// Runs a plan made for the same shapes. Throws InvalidArgument, before anything is written, when args do not
/// fit the plan or the workspace is too small.
void run(const Plan& plan, const DenseDecodeArgs& args, Workspace workspace, Stream stream = {});
/// Plans, allocates a workspace and runs, on the CPU.
void dense_decode(const DenseDecodeArgs& args, const PlanOptions& options = {});
/// int32 elements of a plan for calls of these shapes. Throws InvalidArgument.
int64_t decode_plan_size(const DenseDecodeArgs& args);
/// Fills args.plan, contiguous int32 [decode_plan_size] at a multiple of 16 bytes on a GPU, from the lengths
/// that lie there: how the keys of the batch are cut into evenly loaded pieces. For any number of calls with
/// q, k_cache and block_table of the same shapes and types on the same device: their results are right
/// whatever their lengths are, and quick where they are about these. Reads neither outputs nor values. Throws
/// InvalidArgument.
void fill_decode_plan(const DenseDecodeArgs& args, const Device& device, Stream stream = {});
/// The operator's kernel table, best first, with the reason for every refusal.
std::vector<KernelVerdict> explain(const DenseDecodeArgs& args, const Device& device);

}  // namespace tilewise
