// All schemas in one table. A functional operator returns new tensors; its overload `out` has the same
// arguments, then every output as a mutable one, and returns nothing. Where a functional operator is
// differentiable, one with `_no_grad` behind its name is not: torch's autograd in Python, which costs as much
// as everything else that a call does on the host, has no part in it. (As an overload beside the default one
// and `out` it made torch 2.13 abort at the end of the process.)
#include "schemas.h"

// The arguments that several operators share.
#define DENSE_DECODE                                                                                       \
  "Tensor q, Tensor k_cache, Tensor block_table, Tensor cache_seqlens, float softmax_scale, int d_v=512, " \
  "bool causal=False, int[2] window=[-1, -1], Tensor? attn_sink=None, Tensor? descale_q=None, "            \
  "Tensor? descale_k=None, bool batch_invariant=False, Tensor? plan=None"
#define SPARSE_DECODE                                                                  \
  "Tensor q, Tensor kv_cache, Tensor indices, float softmax_scale, str? record=None, " \
  "Tensor? topk_length=None, Tensor? extra_cache=None, Tensor? extra_indices=None, "   \
  "Tensor? extra_topk_length=None, str? extra_record=None, Tensor? attn_sink=None, "   \
  "bool batch_invariant=False, Tensor? plan=None"
#define DENSE_DECODE_PLAN                                                                          \
  "Tensor q, Tensor k_cache, Tensor block_table, Tensor cache_seqlens, bool causal=False, int[2] " \
  "window=[-1, -1]"
#define SPARSE_DECODE_PLAN                                                                      \
  "Tensor q, Tensor kv_cache, Tensor indices, str? record=None, Tensor? topk_length=None, "     \
  "Tensor? extra_cache=None, Tensor? extra_indices=None, Tensor? extra_topk_length=None, str? " \
  "extra_record=None"
#define SPARSE_PREFILL                                                                                \
  "Tensor q, Tensor kv, Tensor indices, float softmax_scale, int d_v=512, Tensor? topk_length=None, " \
  "Tensor? attn_sink=None, Tensor? sink_bias=None"
#define SPARSE_PREFILL_FWD SPARSE_PREFILL ", int indexer_topk=0"
#define SPARSE_PREFILL_BWD                                                                           \
  "Tensor d_out, Tensor q, Tensor kv, Tensor out, Tensor lse, Tensor indices, float softmax_scale, " \
  "int d_v=512, Tensor? topk_length=None, Tensor? sink_bias=None, bool kl_target=False, "            \
  "bool deterministic=True"
#define VARLEN_LENGTHS \
  "Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, float softmax_scale"
#define DENSE_PREFILL VARLEN_LENGTHS ", bool causal=False, int[2] window=[-1, -1], Tensor? sink_bias=None"
#define BLOCK_SPARSE_PREFILL                                \
  "Tensor? q2k, " VARLEN_LENGTHS                            \
  ", int q_block=128, int kv_block=128, bool causal=True, " \
  "int[2] window=[-1, -1], Tensor? sink_bias=None"
#define VARLEN_BACKWARD "Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
#define VARLEN_GRADIENTS ", *, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, Tensor(d!)? d_sink=None) -> ()"
#define FUSED_PREFILL                                                                                        \
  "Tensor q, Tensor kv, Tensor indices, Tensor token_positions, Tensor cos_sin_cache, float softmax_scale, " \
  "int n_groups, float? q_norm_eps=None, Tensor? topk_length=None, Tensor? attn_sink=None"
#define FUSED_DECODE                                                                                        \
  "Tensor q, Tensor kv_cache, Tensor indices, Tensor token_positions, Tensor cos_sin_cache, "               \
  "float softmax_scale, int n_groups, float? q_norm_eps=None, str? record=None, Tensor? topk_length=None, " \
  "Tensor? extra_cache=None, Tensor? extra_indices=None, Tensor? extra_topk_length=None, "                  \
  "str? extra_record=None, Tensor? attn_sink=None"
#define COMBINE_PARTIALS "Tensor out_partials, Tensor lse_partials, Tensor? attn_sink=None, bool base2=False"
#define QUANTIZE_KV "Tensor x, str record, int page"
#define DEQUANTIZE_KV "Tensor pages, str record"
#define PERMUTE_Q_B_PROJ "Tensor weight, Tensor scales, int h_q, int d_q"
#define PERMUTE_WV_PROJ "Tensor weight, Tensor scales, int group_size, int d_o=512"

// The settings of FlashMLA's fused operators.
#define FLASHMLA_FUSED                                                                                      \
  "bool enable_q_norm, float rms_norm_eps, Tensor token_positions, bool is_rope_neox_style, int rope_dim, " \
  "Tensor cos_sin_cache, int n_wv_group, int num_per_channels, bool use_tma_aligned_col_major_sf, "         \
  "bool round_sf, bool use_packed_ue8m0, Tensor(d!)? out_fp8=None, Tensor(e!)? out_sf=None"

namespace tilewise::bindings {
namespace {

constexpr const char* kNative[] = {
    "dense_decode(" DENSE_DECODE ") -> (Tensor out, Tensor lse)",
    "dense_decode.out(" DENSE_DECODE ", *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    "sparse_decode(" SPARSE_DECODE ") -> (Tensor out, Tensor lse)",
    "sparse_decode.out(" SPARSE_DECODE ", *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    "dense_decode_plan(" DENSE_DECODE_PLAN ") -> Tensor plan",
    "dense_decode_plan.out(" DENSE_DECODE_PLAN ", *, Tensor(a!) plan) -> ()",
    "sparse_decode_plan(" SPARSE_DECODE_PLAN ") -> Tensor plan",
    "sparse_decode_plan.out(" SPARSE_DECODE_PLAN ", *, Tensor(a!) plan) -> ()",
    // lse_indexer has no element where indexer_topk is 0; the overload then wants it left out.
    "sparse_prefill_fwd(" SPARSE_PREFILL_FWD
    ") -> (Tensor out, Tensor max_logits, Tensor lse, Tensor lse_indexer)",
    "sparse_prefill_fwd_no_grad(" SPARSE_PREFILL ") -> (Tensor out, Tensor max_logits, Tensor lse)",
    "sparse_prefill_fwd.out(" SPARSE_PREFILL_FWD
    ", *, Tensor(a!) out, Tensor(b!) max_logits, Tensor(c!) lse, Tensor(d!)? lse_indexer=None) -> ()",
    // d_sink and kl_target have no element where they are not wanted; the overload then wants them left out.
    "sparse_prefill_bwd(" SPARSE_PREFILL_BWD ") -> (Tensor dq, Tensor dkv, Tensor d_sink, Tensor kl_target)",
    "sparse_prefill_bwd.out(" SPARSE_PREFILL_BWD
    ", *, Tensor(a!) dq, Tensor(b!) dkv, Tensor(c!)? d_sink=None, Tensor(d!)? kl_target_out=None) -> ()",
    "dense_prefill_fwd(Tensor q, Tensor k, Tensor v, " DENSE_PREFILL ") -> (Tensor out, Tensor lse)",
    "dense_prefill_fwd_no_grad(Tensor q, Tensor k, Tensor v, " DENSE_PREFILL ") -> (Tensor out, Tensor lse)",
    "dense_prefill_fwd.out(Tensor q, Tensor k, Tensor v, " DENSE_PREFILL
    ", *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    "dense_prefill_bwd(" VARLEN_BACKWARD DENSE_PREFILL
    ", bool deterministic=True) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_sink)",
    "dense_prefill_bwd.out(" VARLEN_BACKWARD DENSE_PREFILL ", bool deterministic=True" VARLEN_GRADIENTS,
    "block_sparse_prefill_fwd(Tensor q, Tensor k, Tensor v, " BLOCK_SPARSE_PREFILL
    ") -> (Tensor out, Tensor lse)",
    "block_sparse_prefill_fwd_no_grad(Tensor q, Tensor k, Tensor v, " BLOCK_SPARSE_PREFILL
    ") -> (Tensor out, Tensor lse)",
    "block_sparse_prefill_fwd.out(Tensor q, Tensor k, Tensor v, " BLOCK_SPARSE_PREFILL
    ", *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    "block_sparse_prefill_bwd(" VARLEN_BACKWARD BLOCK_SPARSE_PREFILL
    ", bool deterministic=True) -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_sink)",
    "block_sparse_prefill_bwd.out(" VARLEN_BACKWARD BLOCK_SPARSE_PREFILL
    ", bool deterministic=True" VARLEN_GRADIENTS,
    "expand_block_selection(Tensor q2k, int factor) -> Tensor out",
    "expand_block_selection.out(Tensor q2k, int factor, *, Tensor(a!) out) -> ()",
    // The overload's q_blocks has as many elements as q2k, of which the last row_ptr says how many are used.
    "invert_block_selection(Tensor q2k, int num_kv_blocks) -> (Tensor row_ptr, Tensor q_blocks)",
    "invert_block_selection.out(Tensor q2k, int num_kv_blocks, *, Tensor(a!) row_ptr, Tensor(b!) q_blocks) "
    "-> ()",
    "fused_prefill(" FUSED_PREFILL ") -> (Tensor out_fp8, Tensor out_sf, Tensor max_logits, Tensor lse)",
    "fused_prefill.out(" FUSED_PREFILL
    ", *, Tensor(a!) out_fp8, Tensor(b!) out_sf, Tensor(c!) max_logits, Tensor(d!) lse, "
    "Tensor(e!)? out_bf16=None) -> ()",
    "fused_decode(" FUSED_DECODE ", int? num_splits=None) -> (Tensor out_fp8, Tensor out_sf, Tensor lse)",
    "fused_decode.out(" FUSED_DECODE
    ", int? num_splits=None, *, Tensor(a!) out_fp8, Tensor(b!) out_sf, Tensor(c!) lse, "
    "Tensor(d!)? out_bf16=None) -> ()",
    "fused_decode_partials(" FUSED_DECODE ", int num_splits=1) -> (Tensor o_accum, Tensor lse_accum)",
    "fused_decode_partials.out(" FUSED_DECODE
    ", int num_splits=1, *, Tensor(a!) o_accum, Tensor(b!) lse_accum) -> ()",
    "combine_partials(" COMBINE_PARTIALS ") -> (Tensor out, Tensor lse)",
    "combine_partials.out(" COMBINE_PARTIALS ", *, Tensor(a!) out, Tensor(b!) lse) -> ()",
    "combine_partials_fused(" COMBINE_PARTIALS
    ", int n_groups=1) -> (Tensor out_fp8, Tensor out_sf, Tensor lse)",
    "combine_partials_fused.out(" COMBINE_PARTIALS
    ", int n_groups=1, *, Tensor(a!) out_fp8, Tensor(b!) out_sf, Tensor(c!) lse) -> ()",
    "quantize_kv(" QUANTIZE_KV ") -> Tensor pages",
    "quantize_kv.out(" QUANTIZE_KV ", *, Tensor(a!) pages) -> ()",
    "dequantize_kv(" DEQUANTIZE_KV ") -> Tensor x",
    "dequantize_kv.out(" DEQUANTIZE_KV ", *, Tensor(a!) x) -> ()",
    "append_kv(Tensor kv, Tensor(a!) cache, Tensor slots, str? record=None) -> ()",
    "permute_q_b_proj(" PERMUTE_Q_B_PROJ ") -> (Tensor weight_out, Tensor scales_out)",
    "permute_q_b_proj.out(" PERMUTE_Q_B_PROJ ", *, Tensor(a!) weight_out, Tensor(b!) scales_out) -> ()",
    "permute_wv_proj(" PERMUTE_WV_PROJ ") -> (Tensor weight_out, Tensor scales_out)",
    "permute_wv_proj.out(" PERMUTE_WV_PROJ ", *, Tensor(a!) weight_out, Tensor(b!) scales_out) -> ()",
    // Threads of CPU operators; 0: torch's own number.
    "set_num_threads(int n) -> ()",
    "get_num_threads() -> int",
    // Does nothing: what a call costs before any work is done.
    "noop(Tensor x) -> ()",
};

constexpr const char* kFlashmla[] = {
    "sparse_decode_fwd(Tensor q, Tensor kv, Tensor indices, Tensor? topk_length, Tensor? attn_sink, "
    "Tensor(a)? tile_scheduler_metadata, Tensor(b)? num_splits, Tensor? extra_kv, Tensor? extra_indices, "
    "Tensor? extra_topk_length, int d_v, float sm_scale, Tensor(c!)? out_=None) "
    "-> (Tensor(c!), Tensor, Tensor(a)?, Tensor(b)?)",
    "dense_decode_fwd(Tensor q, Tensor kcache, int head_size_v, Tensor seqlens_k, Tensor block_table, "
    "float softmax_scale, bool is_causal, Tensor(a)? tile_scheduler_metadata, Tensor(b)? num_splits, "
    "Tensor(c!)? out_=None) -> (Tensor(c!), Tensor, Tensor(a)?, Tensor(b)?)",
    "sparse_prefill_fwd(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, Tensor? attn_sink, "
    "Tensor? topk_length, Tensor(a!)? out_=None) -> Tensor[]",
    "dense_prefill_fwd(Tensor workspace_buffer, Tensor q, Tensor k, Tensor v, Tensor cumulative_seqlen_q, "
    "Tensor cumulative_seqlen_kv, Tensor(a!) o, Tensor(b!) lse, int mask_mode_code, float softmax_scale, "
    "int max_seqlen_q, int max_seqlen_kv, bool is_varlen) -> ()",
    "dense_prefill_bwd(Tensor(a!) workspace_buffer, Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor o, "
    "Tensor lse, Tensor cumulative_seqlen_q, Tensor cumulative_seqlen_kv, Tensor(b!) dq, Tensor(c!) dk, "
    "Tensor(d!) dv, int mask_mode_code, float softmax_scale, int max_seqlen_q, int max_seqlen_kv, "
    "bool is_varlen) -> ()",
    "fused_norm_rope_attn_rope_cast_fwd(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, "
    "Tensor? attn_sink, Tensor? topk_length, " FLASHMLA_FUSED ") -> Tensor[]",
    "fused_norm_rope_attn_rope_cast_decode(Tensor q, Tensor kv, Tensor indices, float sm_scale, int d_v, "
    "Tensor? attn_sink, Tensor? topk_length, Tensor? extra_kv, Tensor? extra_indices, "
    "Tensor? extra_topk_length, " FLASHMLA_FUSED
    ", int mega_num_splits=1, Tensor(f!)? mega_o_accum=None, Tensor(g!)? mega_lse_accum=None) -> Tensor[]",
    "permute_q_b_proj(Tensor q_b_proj, Tensor scale_factors, int h_q, int d_q) -> Tensor[]",
    "permute_wv_proj(Tensor wv_proj, Tensor scale_factors, int wv_group_size, int d_o) -> Tensor[]",
};

constexpr const char* kFlashmlaExtension[] = {
    "fwd_kvcache_mla_fp8(Tensor q, Tensor k_cache, int head_dim_v, Tensor cache_seqlens, Tensor block_table, "
    "float softmax_scale, bool causal, Tensor tile_scheduler_metadata, Tensor num_splits, Tensor? descale_q, "
    "Tensor? descale_k) -> Tensor[]",
    "get_mla_decoding_metadata_dense_fp8(Tensor seqlens_k, int num_heads_per_head_k, int num_heads_k) "
    "-> Tensor[]",
};

}  // namespace

std::span<const char* const> native_schemas() { return kNative; }
std::span<const char* const> flashmla_schemas() { return kFlashmla; }
std::span<const char* const> flashmla_extension_schemas() { return kFlashmlaExtension; }

}  // namespace tilewise::bindings
