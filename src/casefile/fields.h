// What a call consists of: the name and the kind of every member of every operator's argument struct, in the
// order of the operators' arguments.
//
// A visitor has tensor(name, view, Access) and option(name, value) for values of float, int64_t, bool,
// Record, Window and std::optional<float>.
#pragma once

#include "tilewise/case_file.h"

namespace tilewise::casefile {

enum class Access {
  kRead,
  kWritten,  // what it holds before the call does not matter
  kBoth,
};

template <class V>
void each_field(DenseDecodeArgs& a, V&& v) {
  v.tensor("q", a.q, Access::kRead);
  v.tensor("k_cache", a.k_cache, Access::kRead);
  v.tensor("block_table", a.block_table, Access::kRead);
  v.tensor("cache_seqlens", a.cache_seqlens, Access::kRead);
  v.option("softmax_scale", a.softmax_scale);
  v.option("d_v", a.d_v);
  v.option("causal", a.causal);
  v.option("window", a.window);
  v.tensor("attn_sink", a.attn_sink, Access::kRead);
  v.tensor("descale_q", a.descale_q, Access::kRead);
  v.tensor("descale_k", a.descale_k, Access::kRead);
  v.option("batch_invariant", a.batch_invariant);
  v.tensor("out", a.out, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
}

template <class V>
void each_field(SparseDecodeArgs& a, V&& v) {
  v.tensor("q", a.q, Access::kRead);
  v.tensor("kv_cache", a.kv_cache, Access::kRead);
  v.tensor("indices", a.indices, Access::kRead);
  v.option("softmax_scale", a.softmax_scale);
  v.option("record", a.record);
  v.tensor("topk_length", a.topk_length, Access::kRead);
  v.tensor("extra_cache", a.extra_cache, Access::kRead);
  v.tensor("extra_indices", a.extra_indices, Access::kRead);
  v.tensor("extra_topk_length", a.extra_topk_length, Access::kRead);
  v.option("extra_record", a.extra_record);
  v.tensor("attn_sink", a.attn_sink, Access::kRead);
  v.option("batch_invariant", a.batch_invariant);
  v.tensor("out", a.out, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
}

template <class V>
void each_field(SparsePrefillFwdArgs& a, V&& v) {
  v.tensor("q", a.q, Access::kRead);
  v.tensor("kv", a.kv, Access::kRead);
  v.tensor("indices", a.indices, Access::kRead);
  v.option("softmax_scale", a.softmax_scale);
  v.option("d_v", a.d_v);
  v.tensor("topk_length", a.topk_length, Access::kRead);
  v.tensor("attn_sink", a.attn_sink, Access::kRead);
  v.tensor("sink_bias", a.sink_bias, Access::kRead);
  v.option("indexer_topk", a.indexer_topk);
  v.tensor("out", a.out, Access::kWritten);
  v.tensor("max_logits", a.max_logits, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
  v.tensor("lse_indexer", a.lse_indexer, Access::kWritten);
}

template <class V>
void each_field(SparsePrefillBwdArgs& a, V&& v) {
  v.tensor("d_out", a.d_out, Access::kRead);
  v.tensor("q", a.q, Access::kRead);
  v.tensor("kv", a.kv, Access::kRead);
  v.tensor("out", a.out, Access::kRead);
  v.tensor("lse", a.lse, Access::kRead);
  v.tensor("indices", a.indices, Access::kRead);
  v.option("softmax_scale", a.softmax_scale);
  v.option("d_v", a.d_v);
  v.tensor("topk_length", a.topk_length, Access::kRead);
  v.tensor("sink_bias", a.sink_bias, Access::kRead);
  v.option("deterministic", a.deterministic);
  v.tensor("dq", a.dq, Access::kWritten);
  v.tensor("dkv", a.dkv, Access::kWritten);
  v.tensor("d_sink", a.d_sink, Access::kWritten);
  v.tensor("kl_target", a.kl_target, Access::kWritten);
}

template <class V>
void each_varlen_field(VarlenCommon& a, V&& v) {
  v.tensor("q", a.q, Access::kRead);
  v.tensor("k", a.k, Access::kRead);
  v.tensor("v", a.v, Access::kRead);
  v.tensor("cu_seqlens_q", a.cu_seqlens_q, Access::kRead);
  v.tensor("cu_seqlens_k", a.cu_seqlens_k, Access::kRead);
  v.option("max_seqlen_q", a.max_seqlen_q);
  v.option("max_seqlen_k", a.max_seqlen_k);
  v.option("softmax_scale", a.softmax_scale);
  v.option("causal", a.causal);
  v.option("window", a.window);
  v.tensor("sink_bias", a.sink_bias, Access::kRead);
}

template <class V>
void each_selection_field(BlockSparseCommon& a, V&& v) {
  v.tensor("q2k", a.q2k, Access::kRead);
  v.option("q_block", a.q_block);
  v.option("kv_block", a.kv_block);
}

template <class V>
void each_varlen_output(VarlenOutputs& a, V&& v) {
  v.tensor("out", a.out, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
}

template <class V>
void each_varlen_gradient(VarlenGradients& a, V&& v) {
  v.tensor("d_out", a.d_out, Access::kRead);
  v.tensor("out", a.out, Access::kRead);
  v.tensor("lse", a.lse, Access::kRead);
  v.option("deterministic", a.deterministic);
  v.tensor("dq", a.dq, Access::kWritten);
  v.tensor("dk", a.dk, Access::kWritten);
  v.tensor("dv", a.dv, Access::kWritten);
  v.tensor("d_sink", a.d_sink, Access::kWritten);
}

template <class V>
void each_field(DensePrefillFwdArgs& a, V&& v) {
  each_varlen_field(a, v);
  each_varlen_output(a, v);
}

template <class V>
void each_field(DensePrefillBwdArgs& a, V&& v) {
  each_varlen_field(a, v);
  each_varlen_gradient(a, v);
}

template <class V>
void each_field(BlockSparsePrefillFwdArgs& a, V&& v) {
  each_varlen_field(a, v);
  each_selection_field(a, v);
  each_varlen_output(a, v);
}

template <class V>
void each_field(BlockSparsePrefillBwdArgs& a, V&& v) {
  each_varlen_field(a, v);
  each_selection_field(a, v);
  each_varlen_gradient(a, v);
}

template <class V>
void each_field(ExpandBlockSelectionArgs& a, V&& v) {
  v.tensor("q2k", a.q2k, Access::kRead);
  v.option("factor", a.factor);
  v.tensor("out", a.out, Access::kWritten);
}

template <class V>
void each_field(InvertBlockSelectionArgs& a, V&& v) {
  v.tensor("q2k", a.q2k, Access::kRead);
  v.option("num_kv_blocks", a.num_kv_blocks);
  v.tensor("row_ptr", a.row_ptr, Access::kWritten);
  v.tensor("q_blocks", a.q_blocks, Access::kWritten);
}

template <class V>
void each_fused_field(FusedCommon& a, V&& v) {
  v.tensor("q", a.q, Access::kRead);
  v.tensor("token_positions", a.token_positions, Access::kRead);
  v.tensor("cos_sin_cache", a.cos_sin_cache, Access::kRead);
  v.option("softmax_scale", a.softmax_scale);
  v.option("n_groups", a.n_groups);
  v.option("q_norm_eps", a.q_norm_eps);
  v.tensor("topk_length", a.topk_length, Access::kRead);
  v.tensor("attn_sink", a.attn_sink, Access::kRead);
}

template <class V>
void each_fused_cache(FusedDecodeCaches& a, V&& v) {
  v.tensor("kv_cache", a.kv_cache, Access::kRead);
  v.tensor("indices", a.indices, Access::kRead);
  v.option("record", a.record);
  v.tensor("extra_cache", a.extra_cache, Access::kRead);
  v.tensor("extra_indices", a.extra_indices, Access::kRead);
  v.tensor("extra_topk_length", a.extra_topk_length, Access::kRead);
  v.option("extra_record", a.extra_record);
}

template <class V>
void each_fused_output(FusedOutputs& a, V&& v) {
  v.tensor("out_fp8", a.out_fp8, Access::kWritten);
  v.tensor("out_sf", a.out_sf, Access::kWritten);
  v.tensor("out_bf16", a.out_bf16, Access::kWritten);
  v.tensor("max_logits", a.max_logits, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
}

template <class V>
void each_field(FusedPrefillArgs& a, V&& v) {
  each_fused_field(a, v);
  v.tensor("kv", a.kv, Access::kRead);
  v.tensor("indices", a.indices, Access::kRead);
  each_fused_output(a, v);
}

template <class V>
void each_field(FusedDecodeArgs& a, V&& v) {
  each_fused_field(a, v);
  each_fused_cache(a, v);
  each_fused_output(a, v);
}

template <class V>
void each_field(FusedDecodePartialsArgs& a, V&& v) {
  each_fused_field(a, v);
  each_fused_cache(a, v);
  v.option("num_splits", a.num_splits);
  v.tensor("o_accum", a.o_accum, Access::kWritten);
  v.tensor("lse_accum", a.lse_accum, Access::kWritten);
}

template <class V>
void each_partials_field(CombineCommon& a, V&& v) {
  v.tensor("out_partials", a.out_partials, Access::kRead);
  v.tensor("lse_partials", a.lse_partials, Access::kRead);
  v.tensor("attn_sink", a.attn_sink, Access::kRead);
  v.option("base2", a.base2);
}

template <class V>
void each_field(CombinePartialsArgs& a, V&& v) {
  each_partials_field(a, v);
  v.tensor("out", a.out, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
}

template <class V>
void each_field(CombinePartialsFusedArgs& a, V&& v) {
  each_partials_field(a, v);
  v.option("n_groups", a.n_groups);
  v.tensor("out_fp8", a.out_fp8, Access::kWritten);
  v.tensor("out_sf", a.out_sf, Access::kWritten);
  v.tensor("lse", a.lse, Access::kWritten);
}

template <class V>
void each_field(QuantizeKvArgs& a, V&& v) {
  v.tensor("x", a.x, Access::kRead);
  v.option("record", a.record);
  v.tensor("pages", a.pages, Access::kWritten);
}

template <class V>
void each_field(DequantizeKvArgs& a, V&& v) {
  v.tensor("pages", a.pages, Access::kRead);
  v.option("record", a.record);
  v.tensor("x", a.x, Access::kWritten);
}

template <class V>
void each_field(AppendKvArgs& a, V&& v) {
  v.tensor("kv", a.kv, Access::kRead);
  v.tensor("cache", a.cache, Access::kBoth);
  v.tensor("slots", a.slots, Access::kRead);
  v.option("record", a.record);
}

template <class V>
void each_field(PermuteQBProjArgs& a, V&& v) {
  v.tensor("weight", a.weight, Access::kRead);
  v.tensor("scales", a.scales, Access::kRead);
  v.option("h_q", a.h_q);
  v.option("d_q", a.d_q);
  v.tensor("weight_out", a.weight_out, Access::kWritten);
  v.tensor("scales_out", a.scales_out, Access::kWritten);
}

template <class V>
void each_field(PermuteWvProjArgs& a, V&& v) {
  v.tensor("weight", a.weight, Access::kRead);
  v.tensor("scales", a.scales, Access::kRead);
  v.option("group_size", a.group_size);
  v.option("d_o", a.d_o);
  v.tensor("weight_out", a.weight_out, Access::kWritten);
  v.tensor("scales_out", a.scales_out, Access::kWritten);
}

}  // namespace tilewise::casefile
