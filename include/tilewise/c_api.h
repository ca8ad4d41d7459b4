/* The C interface: every serving operator, tensors as DLPack, a status and a message.
 *
 *   TilewiseSparsePrefillFwdArgs args = {.size = sizeof(args)};
 *   args.q = &q; args.kv = &kv; args.indices = &indices; args.out = &out;
 *   args.softmax_scale = 0.044f;
 *   if (tilewise_sparse_prefill_fwd(&args, NULL, 0) != kTilewiseOk) puts(tilewise_last_error());
 *
 * Arguments. Each operator has one struct of arguments. Its first member, `size`, is the struct's size as the
 * caller knows it, so that structs can grow: members are only ever added at the end, and 0 or NULL in a new
 * one always means what a caller who does not know it means. All members that are left 0 or NULL are left
 * out, or have the value that their comment says. The tensors, their shapes and dtypes are those of the C++
 * structs in tilewise/ops/.
 *
 * Every struct but those of the weight permutations has `kernel`, the name of the kernel to use (NULL: the
 * best one that takes the call), and `threads` (0: OpenMP's number).
 *
 * Tensors. A DLTensor (DLPack 0.6 or newer; FP8 by the codes of 1.1) with memory on the CPU. NULL strides
 * mean row-major. Nothing keeps a tensor after a call has returned.
 *
 * Workspace. An operator's scratch memory is the caller's (64-byte aligned, at least the bytes that
 * tilewise_<operator>_workspace gives for the same arguments) or, where `workspace` is NULL, the library's
 * own for the time of the call. The weight permutations need none.
 *
 * Errors. Every function that can fail returns a status. What was wrong is in tilewise_last_error() of the
 * same thread, with the texts of the C++ interface: "<operator>: <argument> must be <expected>, got <what
 * came>". A call that is refused has written nothing. No exception leaves a function.
 *
 * Threads. All functions may be called from several threads at once, on outputs and workspaces of their own.
 */
#pragma once

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum TilewiseStatus {
  kTilewiseOk = 0,
  kTilewiseInvalidArgument = 1,   /* the arguments break the operator's contract */
  kTilewiseWorkspaceTooSmall = 2, /* fewer bytes than tilewise_<operator>_workspace says */
  kTilewiseOutOfMemory = 3,
  kTilewiseInternalError = 4 /* anything else: a fault of the library */
} TilewiseStatus;

/* What this thread's latest call that did not return kTilewiseOk had to say; "" before the first one. The
 * text stays where it is until the thread's next such call. Never NULL. */
const char* tilewise_last_error(void);

/* The library's version, for example "0.1.0". */
const char* tilewise_version(void);

/* The cache records' names, in the order of their ids: index 0 to tilewise_num_records() - 1, otherwise NULL.
 */
size_t tilewise_num_records(void);
const char* tilewise_record_name(size_t index);
/* Bytes of one token of a record for head size d; 0 if there is no such record or it does not hold that size.
 */
int64_t tilewise_record_bytes(const char* record, int64_t d);

/* dense_decode: attention over a paged KV cache. */
typedef struct TilewiseDenseDecodeArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* k_cache;
  const DLTensor* block_table;
  const DLTensor* cache_seqlens;
  float softmax_scale;
  int32_t causal;          /* 0 or 1 */
  int32_t batch_invariant; /* 0 or 1 */
  int64_t d_v;             /* 0: 512 */
  const int64_t* window;   /* {left, right}; NULL: unbounded */
  const DLTensor* attn_sink;
  const DLTensor* descale_q;
  const DLTensor* descale_k;
  const DLTensor* out;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseDenseDecodeArgs;

TilewiseStatus tilewise_dense_decode_workspace(const TilewiseDenseDecodeArgs* args, size_t* bytes);
TilewiseStatus tilewise_dense_decode(const TilewiseDenseDecodeArgs* args, void* workspace,
                                     size_t workspace_bytes);

/* sparse_decode: attention over token lists in paged, quantised caches. */
typedef struct TilewiseSparseDecodeArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* kv_cache;
  const DLTensor* indices;
  float softmax_scale;
  int32_t batch_invariant; /* 0 or 1 */
  const char* record;      /* NULL: found from the cache's shape and dtype */
  const DLTensor* topk_length;
  const DLTensor* extra_cache;
  const DLTensor* extra_indices;
  const DLTensor* extra_topk_length;
  const char* extra_record; /* as record */
  const DLTensor* attn_sink;
  const DLTensor* out;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseSparseDecodeArgs;

TilewiseStatus tilewise_sparse_decode_workspace(const TilewiseSparseDecodeArgs* args, size_t* bytes);
TilewiseStatus tilewise_sparse_decode(const TilewiseSparseDecodeArgs* args, void* workspace,
                                      size_t workspace_bytes);

/* sparse_prefill_fwd: attention over token lists in an unpaged bfloat16 tensor. */
typedef struct TilewiseSparsePrefillFwdArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* kv;
  const DLTensor* indices;
  float softmax_scale;
  int64_t d_v; /* 0: 512 */
  const DLTensor* topk_length;
  const DLTensor* attn_sink;
  const DLTensor* sink_bias;
  int64_t indexer_topk;
  const DLTensor* out;
  const DLTensor* max_logits;
  const DLTensor* lse;
  const DLTensor* lse_indexer;
  const char* kernel;
  int32_t threads;
} TilewiseSparsePrefillFwdArgs;

TilewiseStatus tilewise_sparse_prefill_fwd_workspace(const TilewiseSparsePrefillFwdArgs* args, size_t* bytes);
TilewiseStatus tilewise_sparse_prefill_fwd(const TilewiseSparsePrefillFwdArgs* args, void* workspace,
                                           size_t workspace_bytes);

/* fused_prefill: Q norm, Q RoPE, attention over token lists, inverse RoPE and the FP8 cast. */
typedef struct TilewiseFusedPrefillArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* kv;
  const DLTensor* indices;
  const DLTensor* token_positions;
  const DLTensor* cos_sin_cache;
  float softmax_scale;
  int64_t n_groups;        /* 0: 1 */
  const float* q_norm_eps; /* NULL: no norm */
  const DLTensor* topk_length;
  const DLTensor* attn_sink;
  const DLTensor* out_fp8;
  const DLTensor* out_sf;
  const DLTensor* out_bf16;
  const DLTensor* max_logits;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseFusedPrefillArgs;

TilewiseStatus tilewise_fused_prefill_workspace(const TilewiseFusedPrefillArgs* args, size_t* bytes);
TilewiseStatus tilewise_fused_prefill(const TilewiseFusedPrefillArgs* args, void* workspace,
                                      size_t workspace_bytes);

/* fused_decode: the same over paged caches. */
typedef struct TilewiseFusedDecodeArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* kv_cache;
  const DLTensor* indices;
  const DLTensor* token_positions;
  const DLTensor* cos_sin_cache;
  float softmax_scale;
  int64_t n_groups;        /* 0: 1 */
  const float* q_norm_eps; /* NULL: no norm */
  const char* record;      /* NULL: found from the cache's shape and dtype */
  const DLTensor* topk_length;
  const DLTensor* extra_cache;
  const DLTensor* extra_indices;
  const DLTensor* extra_topk_length;
  const char* extra_record; /* as record */
  const DLTensor* attn_sink;
  const DLTensor* out_fp8;
  const DLTensor* out_sf;
  const DLTensor* out_bf16;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseFusedDecodeArgs;

TilewiseStatus tilewise_fused_decode_workspace(const TilewiseFusedDecodeArgs* args, size_t* bytes);
TilewiseStatus tilewise_fused_decode(const TilewiseFusedDecodeArgs* args, void* workspace,
                                     size_t workspace_bytes);

/* fused_decode_partials: num_splits partial results for tilewise_combine_partials_fused. */
typedef struct TilewiseFusedDecodePartialsArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* kv_cache;
  const DLTensor* indices;
  const DLTensor* token_positions;
  const DLTensor* cos_sin_cache;
  float softmax_scale;
  int64_t n_groups;        /* 0: 1 */
  const float* q_norm_eps; /* NULL: no norm */
  const char* record;      /* NULL: found from the cache's shape and dtype */
  const DLTensor* topk_length;
  const DLTensor* extra_cache;
  const DLTensor* extra_indices;
  const DLTensor* extra_topk_length;
  const char* extra_record; /* as record */
  const DLTensor* attn_sink;
  int64_t num_splits;
  const DLTensor* o_accum;
  const DLTensor* lse_accum;
  const char* kernel;
  int32_t threads;
} TilewiseFusedDecodePartialsArgs;

TilewiseStatus tilewise_fused_decode_partials_workspace(const TilewiseFusedDecodePartialsArgs* args,
                                                        size_t* bytes);
TilewiseStatus tilewise_fused_decode_partials(const TilewiseFusedDecodePartialsArgs* args, void* workspace,
                                              size_t workspace_bytes);

/* combine_partials: merges partial results. */
typedef struct TilewiseCombinePartialsArgs {
  size_t size;
  const DLTensor* out_partials;
  const DLTensor* lse_partials;
  const DLTensor* attn_sink;
  int32_t base2; /* 0 or 1 */
  const DLTensor* out;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseCombinePartialsArgs;

TilewiseStatus tilewise_combine_partials_workspace(const TilewiseCombinePartialsArgs* args, size_t* bytes);
TilewiseStatus tilewise_combine_partials(const TilewiseCombinePartialsArgs* args, void* workspace,
                                         size_t workspace_bytes);

/* combine_partials_fused: merges and casts. */
typedef struct TilewiseCombinePartialsFusedArgs {
  size_t size;
  const DLTensor* out_partials;
  const DLTensor* lse_partials;
  const DLTensor* attn_sink;
  int32_t base2;    /* 0 or 1 */
  int64_t n_groups; /* 0: 1 */
  const DLTensor* out_fp8;
  const DLTensor* out_sf;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseCombinePartialsFusedArgs;

TilewiseStatus tilewise_combine_partials_fused_workspace(const TilewiseCombinePartialsFusedArgs* args,
                                                         size_t* bytes);
TilewiseStatus tilewise_combine_partials_fused(const TilewiseCombinePartialsFusedArgs* args, void* workspace,
                                               size_t workspace_bytes);

/* quantize_kv: bfloat16 rows into fresh pages of a record, which must be named. */
typedef struct TilewiseQuantizeKvArgs {
  size_t size;
  const DLTensor* x;
  const char* record;
  const DLTensor* pages;
  const char* kernel;
  int32_t threads;
} TilewiseQuantizeKvArgs;

TilewiseStatus tilewise_quantize_kv_workspace(const TilewiseQuantizeKvArgs* args, size_t* bytes);
TilewiseStatus tilewise_quantize_kv(const TilewiseQuantizeKvArgs* args, void* workspace,
                                    size_t workspace_bytes);

/* dequantize_kv: pages of a record, which must be named, back into rows. */
typedef struct TilewiseDequantizeKvArgs {
  size_t size;
  const DLTensor* pages;
  const char* record;
  const DLTensor* x;
  const char* kernel;
  int32_t threads;
} TilewiseDequantizeKvArgs;

TilewiseStatus tilewise_dequantize_kv_workspace(const TilewiseDequantizeKvArgs* args, size_t* bytes);
TilewiseStatus tilewise_dequantize_kv(const TilewiseDequantizeKvArgs* args, void* workspace,
                                      size_t workspace_bytes);

/* append_kv: rows into slots of a cache. */
typedef struct TilewiseAppendKvArgs {
  size_t size;
  const DLTensor* kv;
  const DLTensor* cache;
  const DLTensor* slots;
  const char* record; /* NULL: found from the cache's shape and dtype */
  const char* kernel;
  int32_t threads;
} TilewiseAppendKvArgs;

TilewiseStatus tilewise_append_kv_workspace(const TilewiseAppendKvArgs* args, size_t* bytes);
TilewiseStatus tilewise_append_kv(const TilewiseAppendKvArgs* args, void* workspace, size_t workspace_bytes);

/* permute_q_b_proj: the rows of the Q up-projection in the order that the fused operators want. */
typedef struct TilewisePermuteQBProjArgs {
  size_t size;
  const DLTensor* weight;
  const DLTensor* scales;
  int64_t h_q;
  int64_t d_q;
  const DLTensor* weight_out;
  const DLTensor* scales_out;
} TilewisePermuteQBProjArgs;

TilewiseStatus tilewise_permute_q_b_proj(const TilewisePermuteQBProjArgs* args);

/* permute_wv_proj: the columns of the output projection in the order that the fused operators give. */
typedef struct TilewisePermuteWvProjArgs {
  size_t size;
  const DLTensor* weight;
  const DLTensor* scales;
  int64_t group_size;
  int64_t d_o; /* 0: 512 */
  const DLTensor* weight_out;
  const DLTensor* scales_out;
} TilewisePermuteWvProjArgs;

TilewiseStatus tilewise_permute_wv_proj(const TilewisePermuteWvProjArgs* args);

/* sparse_prefill_bwd: the gradients of sparse_prefill_fwd. */
typedef struct TilewiseSparsePrefillBwdArgs {
  size_t size;
  const DLTensor* d_out;
  const DLTensor* q;
  const DLTensor* kv;
  const DLTensor* out;
  const DLTensor* lse;
  const DLTensor* indices;
  float softmax_scale;
  int32_t atomics; /* 1: gradients need not be deterministic */
  int64_t d_v;     /* 0: 512 */
  const DLTensor* topk_length;
  const DLTensor* sink_bias;
  const DLTensor* dq;
  const DLTensor* dkv;
  const DLTensor* d_sink;
  const DLTensor* kl_target;
  const char* kernel;
  int32_t threads;
} TilewiseSparsePrefillBwdArgs;

TilewiseStatus tilewise_sparse_prefill_bwd_workspace(const TilewiseSparsePrefillBwdArgs* args, size_t* bytes);
TilewiseStatus tilewise_sparse_prefill_bwd(const TilewiseSparsePrefillBwdArgs* args, void* workspace,
                                           size_t workspace_bytes);

/* dense_prefill_fwd: attention of whole sequences, laid end to end, to themselves. */
typedef struct TilewiseDensePrefillFwdArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  float softmax_scale;
  int32_t causal;        /* 0 or 1 */
  const int64_t* window; /* {left, right}; NULL: unbounded */
  const DLTensor* sink_bias;
  const DLTensor* out;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseDensePrefillFwdArgs;

TilewiseStatus tilewise_dense_prefill_fwd_workspace(const TilewiseDensePrefillFwdArgs* args, size_t* bytes);
TilewiseStatus tilewise_dense_prefill_fwd(const TilewiseDensePrefillFwdArgs* args, void* workspace,
                                          size_t workspace_bytes);

/* dense_prefill_bwd: its gradients. */
typedef struct TilewiseDensePrefillBwdArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  float softmax_scale;
  int32_t causal;        /* 0 or 1 */
  const int64_t* window; /* {left, right}; NULL: unbounded */
  const DLTensor* sink_bias;
  const DLTensor* d_out;
  const DLTensor* out;
  const DLTensor* lse;
  int32_t atomics; /* 1: gradients need not be deterministic */
  const DLTensor* dq;
  const DLTensor* dk;
  const DLTensor* dv;
  const DLTensor* d_sink;
  const char* kernel;
  int32_t threads;
} TilewiseDensePrefillBwdArgs;

TilewiseStatus tilewise_dense_prefill_bwd_workspace(const TilewiseDensePrefillBwdArgs* args, size_t* bytes);
TilewiseStatus tilewise_dense_prefill_bwd(const TilewiseDensePrefillBwdArgs* args, void* workspace,
                                          size_t workspace_bytes);

/* block_sparse_prefill_fwd: the same to selected blocks of keys alone. */
typedef struct TilewiseBlockSparsePrefillFwdArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  float softmax_scale;
  int32_t not_causal;    /* 0: causal; 1: keys ahead of a query count too */
  const int64_t* window; /* {left, right}; NULL: unbounded */
  const DLTensor* sink_bias;
  const DLTensor* q2k; /* NULL: every block */
  int64_t q_block;     /* 0: 128 */
  int64_t kv_block;    /* 0: 128 */
  const DLTensor* out;
  const DLTensor* lse;
  const char* kernel;
  int32_t threads;
} TilewiseBlockSparsePrefillFwdArgs;

TilewiseStatus tilewise_block_sparse_prefill_fwd_workspace(const TilewiseBlockSparsePrefillFwdArgs* args,
                                                           size_t* bytes);
TilewiseStatus tilewise_block_sparse_prefill_fwd(const TilewiseBlockSparsePrefillFwdArgs* args,
                                                 void* workspace, size_t workspace_bytes);

/* block_sparse_prefill_bwd: its gradients. */
typedef struct TilewiseBlockSparsePrefillBwdArgs {
  size_t size;
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* cu_seqlens_q;
  const DLTensor* cu_seqlens_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  float softmax_scale;
  int32_t not_causal;    /* 0: causal; 1: keys ahead of a query count too */
  const int64_t* window; /* {left, right}; NULL: unbounded */
  const DLTensor* sink_bias;
  const DLTensor* q2k; /* NULL: every block */
  int64_t q_block;     /* 0: 128 */
  int64_t kv_block;    /* 0: 128 */
  const DLTensor* d_out;
  const DLTensor* out;
  const DLTensor* lse;
  int32_t atomics; /* 1: gradients need not be deterministic */
  const DLTensor* dq;
  const DLTensor* dk;
  const DLTensor* dv;
  const DLTensor* d_sink;
  const char* kernel;
  int32_t threads;
} TilewiseBlockSparsePrefillBwdArgs;

TilewiseStatus tilewise_block_sparse_prefill_bwd_workspace(const TilewiseBlockSparsePrefillBwdArgs* args,
                                                           size_t* bytes);
TilewiseStatus tilewise_block_sparse_prefill_bwd(const TilewiseBlockSparsePrefillBwdArgs* args,
                                                 void* workspace, size_t workspace_bytes);

/* expand_block_selection: each row of a selection, `factor` times. */
typedef struct TilewiseExpandBlockSelectionArgs {
  size_t size;
  const DLTensor* q2k;
  int64_t factor;
  const DLTensor* out;
} TilewiseExpandBlockSelectionArgs;

TilewiseStatus tilewise_expand_block_selection(const TilewiseExpandBlockSelectionArgs* args);

/* invert_block_selection: which query blocks selected each key block. */
typedef struct TilewiseInvertBlockSelectionArgs {
  size_t size;
  const DLTensor* q2k;
  int64_t num_kv_blocks;
  const DLTensor* row_ptr;
  const DLTensor* q_blocks;
} TilewiseInvertBlockSelectionArgs;

TilewiseStatus tilewise_invert_block_selection(const TilewiseInvertBlockSelectionArgs* args);

#ifdef __cplusplus
}
#endif
