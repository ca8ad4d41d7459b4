// The training operators: each converts its struct, plans and runs.
#include "c_api/calls.h"
#include "tilewise/tilewise.h"

namespace tilewise::c_api {

template <class C, class A>
static void convert_sequences(const Reader& read, const C& c, A& a) {
  a.q = read.tensor("q", c.q);
  a.k = read.tensor("k", c.k);
  a.v = read.tensor("v", c.v);
  a.cu_seqlens_q = read.tensor("cu_seqlens_q", c.cu_seqlens_q);
  a.cu_seqlens_k = read.tensor("cu_seqlens_k", c.cu_seqlens_k);
  a.max_seqlen_q = c.max_seqlen_q;
  a.max_seqlen_k = c.max_seqlen_k;
  a.softmax_scale = c.softmax_scale;
  if constexpr (std::is_base_of_v<BlockSparseCommon, A>) {
    a.causal = c.not_causal == 0;
  } else {
    a.causal = c.causal != 0;
  }
  a.window = Reader::window(c.window);
  a.sink_bias = read.tensor("sink_bias", c.sink_bias);
}

template <class C>
static void convert_selection(const Reader& read, const C& c, BlockSparseCommon& a) {
  a.q2k = read.tensor("q2k", c.q2k);
  a.q_block = Reader::or_default(c.q_block, a.q_block);
  a.kv_block = Reader::or_default(c.kv_block, a.kv_block);
}

template <class C>
static void convert_results(const Reader& read, const C& c, VarlenOutputs& a) {
  a.out = read.tensor("out", c.out);
  a.lse = read.tensor("lse", c.lse);
}

template <class C>
static void convert_results(const Reader& read, const C& c, VarlenGradients& a) {
  a.d_out = read.tensor("d_out", c.d_out);
  a.out = read.tensor("out", c.out);
  a.lse = read.tensor("lse", c.lse);
  a.deterministic = c.atomics == 0;
  a.dq = read.tensor("dq", c.dq);
  a.dk = read.tensor("dk", c.dk);
  a.dv = read.tensor("dv", c.dv);
  a.d_sink = read.tensor("d_sink", c.d_sink);
}

static SparsePrefillBwdArgs convert(const Reader& read, const TilewiseSparsePrefillBwdArgs& c) {
  SparsePrefillBwdArgs a;
  a.d_out = read.tensor("d_out", c.d_out);
  a.q = read.tensor("q", c.q);
  a.kv = read.tensor("kv", c.kv);
  a.out = read.tensor("out", c.out);
  a.lse = read.tensor("lse", c.lse);
  a.indices = read.tensor("indices", c.indices);
  a.softmax_scale = c.softmax_scale;
  a.d_v = Reader::or_default(c.d_v, a.d_v);
  a.topk_length = read.tensor("topk_length", c.topk_length);
  a.sink_bias = read.tensor("sink_bias", c.sink_bias);
  a.deterministic = c.atomics == 0;
  a.dq = read.tensor("dq", c.dq);
  a.dkv = read.tensor("dkv", c.dkv);
  a.d_sink = read.tensor("d_sink", c.d_sink);
  a.kl_target = read.tensor("kl_target", c.kl_target);
  return a;
}

static DensePrefillFwdArgs convert(const Reader& read, const TilewiseDensePrefillFwdArgs& c) {
  DensePrefillFwdArgs a;
  convert_sequences(read, c, a);
  convert_results(read, c, a);
  return a;
}

static DensePrefillBwdArgs convert(const Reader& read, const TilewiseDensePrefillBwdArgs& c) {
  DensePrefillBwdArgs a;
  convert_sequences(read, c, a);
  convert_results(read, c, a);
  return a;
}

static BlockSparsePrefillFwdArgs convert(const Reader& read, const TilewiseBlockSparsePrefillFwdArgs& c) {
  BlockSparsePrefillFwdArgs a;
  convert_sequences(read, c, a);
  convert_selection(read, c, a);
  convert_results(read, c, a);
  return a;
}

static BlockSparsePrefillBwdArgs convert(const Reader& read, const TilewiseBlockSparsePrefillBwdArgs& c) {
  BlockSparsePrefillBwdArgs a;
  convert_sequences(read, c, a);
  convert_selection(read, c, a);
  convert_results(read, c, a);
  return a;
}

}  // namespace tilewise::c_api

using tilewise::c_api::call;
using tilewise::c_api::give_workspace;
using tilewise::c_api::guarded;
using tilewise::c_api::Reader;

extern "C" {

TilewiseStatus tilewise_sparse_prefill_bwd_workspace(const TilewiseSparsePrefillBwdArgs* args,
                                                     size_t* bytes) {
  return give_workspace("sparse_prefill_bwd", args, bytes);
}
TilewiseStatus tilewise_sparse_prefill_bwd(const TilewiseSparsePrefillBwdArgs* args, void* workspace,
                                           size_t workspace_bytes) {
  return call("sparse_prefill_bwd", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_dense_prefill_fwd_workspace(const TilewiseDensePrefillFwdArgs* args, size_t* bytes) {
  return give_workspace("dense_prefill_fwd", args, bytes);
}
TilewiseStatus tilewise_dense_prefill_fwd(const TilewiseDensePrefillFwdArgs* args, void* workspace,
                                          size_t workspace_bytes) {
  return call("dense_prefill_fwd", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_dense_prefill_bwd_workspace(const TilewiseDensePrefillBwdArgs* args, size_t* bytes) {
  return give_workspace("dense_prefill_bwd", args, bytes);
}
TilewiseStatus tilewise_dense_prefill_bwd(const TilewiseDensePrefillBwdArgs* args, void* workspace,
                                          size_t workspace_bytes) {
  return call("dense_prefill_bwd", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_block_sparse_prefill_fwd_workspace(const TilewiseBlockSparsePrefillFwdArgs* args,
                                                           size_t* bytes) {
  return give_workspace("block_sparse_prefill_fwd", args, bytes);
}
TilewiseStatus tilewise_block_sparse_prefill_fwd(const TilewiseBlockSparsePrefillFwdArgs* args,
                                                 void* workspace, size_t workspace_bytes) {
  return call("block_sparse_prefill_fwd", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_block_sparse_prefill_bwd_workspace(const TilewiseBlockSparsePrefillBwdArgs* args,
                                                           size_t* bytes) {
  return give_workspace("block_sparse_prefill_bwd", args, bytes);
}
TilewiseStatus tilewise_block_sparse_prefill_bwd(const TilewiseBlockSparsePrefillBwdArgs* args,
                                                 void* workspace, size_t workspace_bytes) {
  return call("block_sparse_prefill_bwd", args, workspace, workspace_bytes);
}

TilewiseStatus tilewise_expand_block_selection(const TilewiseExpandBlockSelectionArgs* args) {
  return guarded("expand_block_selection", [&] {
    const Reader read("expand_block_selection");
    const TilewiseExpandBlockSelectionArgs c = read.known(args);
    tilewise::ExpandBlockSelectionArgs a;
    a.q2k = read.tensor("q2k", c.q2k);
    a.factor = c.factor;
    a.out = read.tensor("out", c.out);
    tilewise::expand_block_selection(a);
  });
}

TilewiseStatus tilewise_invert_block_selection(const TilewiseInvertBlockSelectionArgs* args) {
  return guarded("invert_block_selection", [&] {
    const Reader read("invert_block_selection");
    const TilewiseInvertBlockSelectionArgs c = read.known(args);
    tilewise::InvertBlockSelectionArgs a;
    a.q2k = read.tensor("q2k", c.q2k);
    a.num_kv_blocks = c.num_kv_blocks;
    a.row_ptr = read.tensor("row_ptr", c.row_ptr);
    a.q_blocks = read.tensor("q_blocks", c.q_blocks);
    tilewise::invert_block_selection(a);
  });
}

}  // extern "C"
