// A valid small call of every training operator; see calls.h.
#pragma once

#include "tests/errors/calls.h"

namespace tilewise::errors {

/// q, k, v of two sequences, and what goes with them.
template <class Args>
void add_sequences(Call<Args>& call) {
  Memory& m = call.memory;
  Args& a = call.args;
  a.q = m.input(DType::kBF16, {5, 4, 192});
  a.k = m.input(DType::kBF16, {6, 2, 192});
  a.v = m.input(DType::kBF16, {6, 2, 128});
  a.cu_seqlens_q = m.input(DType::kInt32, {3});
  a.cu_seqlens_k = m.input(DType::kInt32, {3});
  a.max_seqlen_q = 5;
  a.max_seqlen_k = 6;
  a.sink_bias = m.input(DType::kFP16, {4});
  call.arguments = {
      {"q", &Args::q, "bfloat16 or float16 [total_q, h_q, d_qk]"},
      {"k", &Args::k, "bfloat16 [total_k, h_kv, 192]"},
      {"v", &Args::v, "bfloat16 [6, 2, d_v]"},
      {"cu_seqlens_q", &Args::cu_seqlens_q, "int32 [b + 1]"},
      {"cu_seqlens_k", &Args::cu_seqlens_k, "int32 [3]"},
      {"sink_bias", &Args::sink_bias, "float32, float16 or bfloat16 [4]", Strides::kRows, false, nullptr},
  };
}

template <class Args>
void add_outputs(Call<Args>& call) {
  call.args.out = call.memory.output(DType::kBF16, {5, 4, 128});
  call.args.lse = call.memory.output(DType::kFP32, {5, 4});
  call.arguments.push_back({"out", &Args::out, "bfloat16 [5, 4, 128]", Strides::kRows, kOutput});
  call.arguments.push_back({"lse", &Args::lse, "float32 [5, 4]", Strides::kOwn, kOutput, nullptr});
}

template <class Args>
void add_gradients(Call<Args>& call) {
  Memory& m = call.memory;
  Args& a = call.args;
  a.d_out = m.input(DType::kBF16, {5, 4, 128});
  a.out = m.input(DType::kBF16, {5, 4, 128});
  a.lse = m.input(DType::kFP32, {5, 4});
  a.dq = m.output(DType::kBF16, {5, 4, 192});
  a.dk = m.output(DType::kBF16, {6, 2, 192});
  a.dv = m.output(DType::kBF16, {6, 2, 128});
  a.d_sink = m.output(DType::kFP16, {4});
  // Without the sink, d_sink is one too many: that has a row of its own.
  call.arguments.pop_back();
  call.arguments.push_back({"d_out", &Args::d_out, "bfloat16 [5, 4, 128]"});
  call.arguments.push_back({"out", &Args::out, "bfloat16 [5, 4, 128]"});
  call.arguments.push_back({"lse", &Args::lse, "float32 [5, 4]", Strides::kOwn});
  call.arguments.push_back({"dq", &Args::dq, "bfloat16 [5, 4, 192]", Strides::kRows, kOutput});
  call.arguments.push_back({"dk", &Args::dk, "bfloat16 [6, 2, 192]", Strides::kRows, kOutput});
  call.arguments.push_back({"dv", &Args::dv, "bfloat16 [6, 2, 128]", Strides::kRows, kOutput});
  call.arguments.push_back(
      {"d_sink", &Args::d_sink, "float16 [4]", Strides::kRows, kOutput, "given with sink_bias"});
}

/// A selection of each head's own, blocks 64 x 64.
template <class Args>
void add_selection(Call<Args>& call) {
  call.args.q2k = call.memory.input(DType::kInt32, {4, 2, 3});
  call.args.q_block = 64;
  call.args.kv_block = 64;
  call.arguments.push_back({"q2k", &Args::q2k, "int32 [4, rows, n]", Strides::kOwn, false, nullptr});
}

inline Call<DensePrefillFwdArgs> dense_prefill_fwd_call() {
  Call<DensePrefillFwdArgs> call{"dense_prefill_fwd"};
  add_sequences(call);
  add_outputs(call);
  return call;
}

inline Call<DensePrefillBwdArgs> dense_prefill_bwd_call() {
  Call<DensePrefillBwdArgs> call{"dense_prefill_bwd"};
  add_sequences(call);
  add_gradients(call);
  return call;
}

inline Call<BlockSparsePrefillFwdArgs> block_sparse_prefill_fwd_call() {
  Call<BlockSparsePrefillFwdArgs> call{"block_sparse_prefill_fwd"};
  add_sequences(call);
  add_selection(call);
  add_outputs(call);
  return call;
}

inline Call<BlockSparsePrefillBwdArgs> block_sparse_prefill_bwd_call() {
  Call<BlockSparsePrefillBwdArgs> call{"block_sparse_prefill_bwd"};
  add_sequences(call);
  add_selection(call);
  call.arguments.pop_back();
  add_gradients(call);
  call.arguments.push_back(
      {"q2k", &BlockSparsePrefillBwdArgs::q2k, "int32 [4, rows, n]", Strides::kOwn, false, nullptr});
  return call;
}

inline Call<SparsePrefillBwdArgs> sparse_prefill_bwd_call() {
  Call<SparsePrefillBwdArgs> call{"sparse_prefill_bwd"};
  Memory& m = call.memory;
  SparsePrefillBwdArgs& a = call.args;
  a.q = m.input(DType::kBF16, {3, 4, 576});
  a.kv = m.input(DType::kBF16, {6, 1, 576});
  a.indices = m.input(DType::kInt32, {3, 1, 5});
  a.topk_length = m.input(DType::kInt32, {3});
  a.d_out = m.input(DType::kBF16, {3, 4, 512});
  a.out = m.input(DType::kBF16, {3, 4, 512});
  a.lse = m.input(DType::kFP32, {3, 4});
  a.sink_bias = m.input(DType::kFP16, {4});
  a.dq = m.output(DType::kBF16, {3, 4, 576});
  a.dkv = m.output(DType::kBF16, {6, 1, 576});
  a.d_sink = m.output(DType::kFP16, {4});
  a.kl_target = m.output(DType::kFP32, {3, 5});
  using A = SparsePrefillBwdArgs;
  call.arguments = {
      {"q", &A::q, "bfloat16 [s_q, h_q, 576 or 512]"},
      {"kv", &A::kv, "bfloat16 [s_kv, 1, 576]"},
      {"indices", &A::indices, "int32 [3, 1, topk]"},
      {"topk_length", &A::topk_length, "int32 [3]", Strides::kRows, false, nullptr},
      {"d_out", &A::d_out, "bfloat16 [3, 4, 512]"},
      {"out", &A::out, "bfloat16 [3, 4, 512]"},
      {"lse", &A::lse, "float32 [3, 4]"},
      {"dq", &A::dq, "bfloat16 [3, 4, 576]", Strides::kRows, kOutput},
      {"dkv", &A::dkv, "bfloat16 [6, 1, 576]", Strides::kRows, kOutput},
      {"d_sink", &A::d_sink, "float16 [4]", Strides::kRows, kOutput, "given with sink_bias"},
      {"kl_target", &A::kl_target, "float32 [3, 5]", Strides::kRows, kOutput, nullptr},
  };
  return call;
}

inline Call<ExpandBlockSelectionArgs> expand_block_selection_call() {
  Call<ExpandBlockSelectionArgs> call{"expand_block_selection"};
  using A = ExpandBlockSelectionArgs;
  call.args.q2k = call.memory.input(DType::kInt32, {2, 3, 4});
  call.args.factor = 2;
  call.args.out = call.memory.output(DType::kInt32, {2, 6, 4});
  call.arguments = {{"q2k", &A::q2k, "int32 [h_q, rows, n]"},
                    {"out", &A::out, "int32 [2, 6, 4]", Strides::kRows, kOutput}};
  return call;
}

inline Call<InvertBlockSelectionArgs> invert_block_selection_call() {
  Call<InvertBlockSelectionArgs> call{"invert_block_selection"};
  using A = InvertBlockSelectionArgs;
  call.args.q2k = call.memory.input(DType::kInt32, {2, 3, 4});
  call.args.num_kv_blocks = 5;
  call.args.row_ptr = call.memory.output(DType::kInt32, {2, 6});
  call.args.q_blocks = call.memory.output(DType::kInt32, {24});
  call.arguments = {{"q2k", &A::q2k, "int32 [h_q, rows, n]"},
                    {"row_ptr", &A::row_ptr, "int32 [2, 6]", Strides::kRows, kOutput},
                    {"q_blocks", &A::q_blocks, "int32 [24]", Strides::kRows, kOutput}};
  return call;
}

}  // namespace tilewise::errors
