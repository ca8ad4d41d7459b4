// The serving operators: each converts its struct, plans and runs.
#include "c_api/calls.h"
#include "tilewise/tilewise.h"

namespace tilewise::c_api {

static DenseDecodeArgs convert(const Reader& read, const TilewiseDenseDecodeArgs& c) {
  DenseDecodeArgs a;
  a.q = read.tensor("q", c.q);
  a.k_cache = read.tensor("k_cache", c.k_cache);
  a.block_table = read.tensor("block_table", c.block_table);
  a.cache_seqlens = read.tensor("cache_seqlens", c.cache_seqlens);
  a.softmax_scale = c.softmax_scale;
  a.d_v = Reader::or_default(c.d_v, a.d_v);
  a.causal = c.causal != 0;
  a.window = Reader::window(c.window);
  a.attn_sink = read.tensor("attn_sink", c.attn_sink);
  a.descale_q = read.tensor("descale_q", c.descale_q);
  a.descale_k = read.tensor("descale_k", c.descale_k);
  a.batch_invariant = c.batch_invariant != 0;
  a.out = read.tensor("out", c.out);
  a.lse = read.tensor("lse", c.lse);
  return a;
}

// The caches of sparse_decode and of the fused decode forms.
template <class C, class A>
static void convert_caches(const Reader& read, const C& c, A& a) {
  a.kv_cache = read.tensor("kv_cache", c.kv_cache);
  a.indices = read.tensor("indices", c.indices);
  a.record = read.record("record", c.record);
  a.topk_length = read.tensor("topk_length", c.topk_length);
  a.extra_cache = read.tensor("extra_cache", c.extra_cache);
  a.extra_indices = read.tensor("extra_indices", c.extra_indices);
  a.extra_topk_length = read.tensor("extra_topk_length", c.extra_topk_length);
  a.extra_record = read.record("extra_record", c.extra_record);
}

static SparseDecodeArgs convert(const Reader& read, const TilewiseSparseDecodeArgs& c) {
  SparseDecodeArgs a;
  a.q = read.tensor("q", c.q);
  convert_caches(read, c, a);
  a.softmax_scale = c.softmax_scale;
  a.attn_sink = read.tensor("attn_sink", c.attn_sink);
  a.batch_invariant = c.batch_invariant != 0;
  a.out = read.tensor("out", c.out);
  a.lse = read.tensor("lse", c.lse);
  return a;
}

static SparsePrefillFwdArgs convert(const Reader& read, const TilewiseSparsePrefillFwdArgs& c) {
  SparsePrefillFwdArgs a;
  a.q = read.tensor("q", c.q);
  a.kv = read.tensor("kv", c.kv);
  a.indices = read.tensor("indices", c.indices);
  a.softmax_scale = c.softmax_scale;
  a.d_v = Reader::or_default(c.d_v, a.d_v);
  a.topk_length = read.tensor("topk_length", c.topk_length);
  a.attn_sink = read.tensor("attn_sink", c.attn_sink);
  a.sink_bias = read.tensor("sink_bias", c.sink_bias);
  a.indexer_topk = c.indexer_topk;
  a.out = read.tensor("out", c.out);
  a.max_logits = read.tensor("max_logits", c.max_logits);
  a.lse = read.tensor("lse", c.lse);
  a.lse_indexer = read.tensor("lse_indexer", c.lse_indexer);
  return a;
}

template <class C>
static void convert_fused(const Reader& read, const C& c, FusedCommon& a) {
  a.q = read.tensor("q", c.q);
  a.token_positions = read.tensor("token_positions", c.token_positions);
  a.cos_sin_cache = read.tensor("cos_sin_cache", c.cos_sin_cache);
  a.softmax_scale = c.softmax_scale;
  a.n_groups = Reader::or_default(c.n_groups, a.n_groups);
  if (c.q_norm_eps != nullptr) a.q_norm_eps = *c.q_norm_eps;
  a.topk_length = read.tensor("topk_length", c.topk_length);
  a.attn_sink = read.tensor("attn_sink", c.attn_sink);
}

template <class C>
static void convert_outputs(const Reader& read, const C& c, FusedOutputs& a) {
  a.out_fp8 = read.tensor("out_fp8", c.out_fp8);
  a.out_sf = read.tensor("out_sf", c.out_sf);
  a.out_bf16 = read.tensor("out_bf16", c.out_bf16);
  a.lse = read.tensor("lse", c.lse);
}

static FusedPrefillArgs convert(const Reader& read, const TilewiseFusedPrefillArgs& c) {
  FusedPrefillArgs a;
  convert_fused(read, c, a);
  a.kv = read.tensor("kv", c.kv);
  a.indices = read.tensor("indices", c.indices);
  convert_outputs(read, c, a);
  a.max_logits = read.tensor("max_logits", c.max_logits);
  return a;
}

static FusedDecodeArgs convert(const Reader& read, const TilewiseFusedDecodeArgs& c) {
  FusedDecodeArgs a;
  convert_fused(read, c, a);
  convert_caches(read, c, a);
  convert_outputs(read, c, a);
  return a;
}

static FusedDecodePartialsArgs convert(const Reader& read, const TilewiseFusedDecodePartialsArgs& c) {
  FusedDecodePartialsArgs a;
  convert_fused(read, c, a);
  convert_caches(read, c, a);
  a.num_splits = c.num_splits;
  a.o_accum = read.tensor("o_accum", c.o_accum);
  a.lse_accum = read.tensor("lse_accum", c.lse_accum);
  return a;
}

template <class C>
static void convert_partials(const Reader& read, const C& c, CombineCommon& a) {
  a.out_partials = read.tensor("out_partials", c.out_partials);
  a.lse_partials = read.tensor("lse_partials", c.lse_partials);
  a.attn_sink = read.tensor("attn_sink", c.attn_sink);
  a.base2 = c.base2 != 0;
}

static CombinePartialsArgs convert(const Reader& read, const TilewiseCombinePartialsArgs& c) {
  CombinePartialsArgs a;
  convert_partials(read, c, a);
  a.out = read.tensor("out", c.out);
  a.lse = read.tensor("lse", c.lse);
  return a;
}

static CombinePartialsFusedArgs convert(const Reader& read, const TilewiseCombinePartialsFusedArgs& c) {
  CombinePartialsFusedArgs a;
  convert_partials(read, c, a);
  a.n_groups = Reader::or_default(c.n_groups, a.n_groups);
  a.out_fp8 = read.tensor("out_fp8", c.out_fp8);
  a.out_sf = read.tensor("out_sf", c.out_sf);
  a.lse = read.tensor("lse", c.lse);
  return a;
}

static QuantizeKvArgs convert(const Reader& read, const TilewiseQuantizeKvArgs& c) {
  return {read.tensor("x", c.x), read.record("record", c.record), read.tensor("pages", c.pages)};
}

static DequantizeKvArgs convert(const Reader& read, const TilewiseDequantizeKvArgs& c) {
  return {read.tensor("pages", c.pages), read.record("record", c.record), read.tensor("x", c.x)};
}

static AppendKvArgs convert(const Reader& read, const TilewiseAppendKvArgs& c) {
  return {read.tensor("kv", c.kv), read.tensor("cache", c.cache), read.tensor("slots", c.slots),
          read.record("record", c.record)};
}

}  // namespace tilewise::c_api

using tilewise::c_api::call;
using tilewise::c_api::give_workspace;
using tilewise::c_api::guarded;
using tilewise::c_api::Reader;

extern "C" {

TilewiseStatus tilewise_dense_decode_workspace(const TilewiseDenseDecodeArgs* args, size_t* bytes) {
  return give_workspace("dense_decode", args, bytes);
}
TilewiseStatus tilewise_dense_decode(const TilewiseDenseDecodeArgs* args, void* workspace,
                                     size_t workspace_bytes) {
  return call("dense_decode", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_sparse_decode_workspace(const TilewiseSparseDecodeArgs* args, size_t* bytes) {
  return give_workspace("sparse_decode", args, bytes);
}
TilewiseStatus tilewise_sparse_decode(const TilewiseSparseDecodeArgs* args, void* workspace,
                                      size_t workspace_bytes) {
  return call("sparse_decode", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_sparse_prefill_fwd_workspace(const TilewiseSparsePrefillFwdArgs* args,
                                                     size_t* bytes) {
  return give_workspace("sparse_prefill_fwd", args, bytes);
}
TilewiseStatus tilewise_sparse_prefill_fwd(const TilewiseSparsePrefillFwdArgs* args, void* workspace,
                                           size_t workspace_bytes) {
  return call("sparse_prefill_fwd", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_fused_prefill_workspace(const TilewiseFusedPrefillArgs* args, size_t* bytes) {
  return give_workspace("fused_prefill", args, bytes);
}
TilewiseStatus tilewise_fused_prefill(const TilewiseFusedPrefillArgs* args, void* workspace,
                                      size_t workspace_bytes) {
  return call("fused_prefill", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_fused_decode_workspace(const TilewiseFusedDecodeArgs* args, size_t* bytes) {
  return give_workspace("fused_decode", args, bytes);
}
TilewiseStatus tilewise_fused_decode(const TilewiseFusedDecodeArgs* args, void* workspace,
                                     size_t workspace_bytes) {
  return call("fused_decode", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_fused_decode_partials_workspace(const TilewiseFusedDecodePartialsArgs* args,
                                                        size_t* bytes) {
  return give_workspace("fused_decode_partials", args, bytes);
}
TilewiseStatus tilewise_fused_decode_partials(const TilewiseFusedDecodePartialsArgs* args, void* workspace,
                                              size_t workspace_bytes) {
  return call("fused_decode_partials", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_combine_partials_workspace(const TilewiseCombinePartialsArgs* args, size_t* bytes) {
  return give_workspace("combine_partials", args, bytes);
}
TilewiseStatus tilewise_combine_partials(const TilewiseCombinePartialsArgs* args, void* workspace,
                                         size_t workspace_bytes) {
  return call("combine_partials", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_combine_partials_fused_workspace(const TilewiseCombinePartialsFusedArgs* args,
                                                         size_t* bytes) {
  return give_workspace("combine_partials_fused", args, bytes);
}
TilewiseStatus tilewise_combine_partials_fused(const TilewiseCombinePartialsFusedArgs* args, void* workspace,
                                               size_t workspace_bytes) {
  return call("combine_partials_fused", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_quantize_kv_workspace(const TilewiseQuantizeKvArgs* args, size_t* bytes) {
  return give_workspace("quantize_kv", args, bytes);
}
TilewiseStatus tilewise_quantize_kv(const TilewiseQuantizeKvArgs* args, void* workspace,
                                    size_t workspace_bytes) {
  return call("quantize_kv", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_dequantize_kv_workspace(const TilewiseDequantizeKvArgs* args, size_t* bytes) {
  return give_workspace("dequantize_kv", args, bytes);
}
TilewiseStatus tilewise_dequantize_kv(const TilewiseDequantizeKvArgs* args, void* workspace,
                                      size_t workspace_bytes) {
  return call("dequantize_kv", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_append_kv_workspace(const TilewiseAppendKvArgs* args, size_t* bytes) {
  return give_workspace("append_kv", args, bytes);
}
TilewiseStatus tilewise_append_kv(const TilewiseAppendKvArgs* args, void* workspace, size_t workspace_bytes) {
  return call("append_kv", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_permute_q_b_proj(const TilewisePermuteQBProjArgs* args) {
  return guarded("permute_q_b_proj", [&] {
    const Reader read("permute_q_b_proj");
    const TilewisePermuteQBProjArgs c = read.known(args);
    tilewise::PermuteQBProjArgs a;
    a.weight = read.tensor("weight", c.weight);
    a.scales = read.tensor("scales", c.scales);
    a.h_q = c.h_q;
    a.d_q = c.d_q;
    a.weight_out = read.tensor("weight_out", c.weight_out);
    a.scales_out = read.tensor("scales_out", c.scales_out);
    tilewise::permute_q_b_proj(a);
  });
}

TilewiseStatus tilewise_permute_wv_proj(const TilewisePermuteWvProjArgs* args) {
  return guarded("permute_wv_proj", [&] {
    const Reader read("permute_wv_proj");
    const TilewisePermuteWvProjArgs c = read.known(args);
    tilewise::PermuteWvProjArgs a;
    a.weight = read.tensor("weight", c.weight);
    a.scales = read.tensor("scales", c.scales);
    a.group_size = c.group_size;
    a.d_o = Reader::or_default(c.d_o, a.d_o);
    a.weight_out = read.tensor("weight_out", c.weight_out);
    a.scales_out = read.tensor("scales_out", c.scales_out);
    tilewise::permute_wv_proj(a);
  });
}

}  // extern "C"
