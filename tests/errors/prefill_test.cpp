// Every error of dense_prefill and block_sparse_prefill, forward and backward, and of what prepares
// selections.
#include <limits>

#include "tests/errors/refusal.h"
#include "tests/errors/training_calls.h"

namespace tilewise::errors {
namespace {

constexpr int64_t kTooMany = int64_t{1} << 31;

template <class Args>
std::vector<Row<Args>> sequence_rows() {
  return {
      {"too many rows of q", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 0, kTooMany), 0, 0); },
       "q must be of total_q 0 to 2147483647, got total_q 2147483648"},
      {"too many rows of k", [](auto& c) { c.args.k = with_stride(with_size(c.args.k, 0, kTooMany), 0, 0); },
       "k must be of total_k 0 to 2147483647, got total_k 2147483648"},
      {"no head", [](auto& c) { c.args.q = with_size(c.args.q, 1, 0); },
       "q must be of h_q 1 to 2147483647, got h_q 0"},
      {"heads that are no multiple", [](auto& c) { c.args.k = with_size(c.args.k, 1, 3); },
       "k must be of h_kv a divisor of h_q 4, got h_kv 3"},
      {"no KV head", [](auto& c) { c.args.k = with_size(c.args.k, 1, 0); },
       "k must be of h_kv a divisor of h_q 4, got h_kv 0"},
      {"another type", [](auto& c) { c.args.k = with_dtype(c.args.k, DType::kFP16); },
       "k must be bfloat16 [total_k, h_kv, 192], got float16 [6, 2, 192]"},
      {"no cu_seqlens", [](auto& c) { c.args.cu_seqlens_q = with_size(c.args.cu_seqlens_q, 0, 0); },
       "cu_seqlens_q must be of b + 1 1 to 2147483647, got b + 1 0"},
      {"negative max_seqlen_q", [](auto& c) { c.args.max_seqlen_q = -1; },
       "max_seqlen_q must be 0 to 2147483647, got -1"},
      {"huge max_seqlen_k", [](auto& c) { c.args.max_seqlen_k = kTooMany; },
       "max_seqlen_k must be 0 to 2147483647, got 2147483648"},
      {"infinite scale", [](auto& c) { c.args.softmax_scale = std::numeric_limits<float>::infinity(); },
       "softmax_scale must be finite, got inf"},
      {"window below -1", [](auto& c) { c.args.window = {-2, -1}; },
       "window must be a pair of numbers of at least -1, got (-2, -1)"},
  };
}

template <class Args>
std::vector<Row<Args>> selection_rows() {
  return {
      {"q_block 0", [](auto& c) { c.args.q_block = 0; }, "q_block must be a positive multiple of 64, got 0"},
      {"q_block 96", [](auto& c) { c.args.q_block = 96; },
       "q_block must be a positive multiple of 64, got 96"},
      {"kv_block 32", [](auto& c) { c.args.kv_block = 32; }, "kv_block must be 64 or 128, got 32"},
      {"kv_block without a selection",
       [](auto& c) {
         c.args.q2k = {};
         c.args.kv_block = 256;
       },
       "kv_block must be 64 or 128, got 256"},
      {"a vector for a selection",
       [](auto& c) { c.args.q2k = TensorView(c.args.q2k.data(), DType::kInt32, {6}); },
       "q2k must be int32 [4, rows, n], got int32 [6]"},
      {"another number of heads", [](auto& c) { c.args.q2k = with_size(c.args.q2k, 0, 2); },
       "q2k must be int32 [4, rows, n], got int32 [2, 2, 3]"},
      {"too many rows", [](auto& c) { c.args.q2k = with_stride(with_size(c.args.q2k, 1, kTooMany), 1, 0); },
       "q2k must be of rows 0 to 2147483647, got rows 2147483648"},
      {"too long a list", [](auto& c) { c.args.q2k = with_stride(with_size(c.args.q2k, 2, kTooMany), 1, 0); },
       "q2k must be of n 0 to 2147483647, got n 2147483648"},
  };
}

template <class Args>
std::vector<Row<Args>> gradient_rows() {
  return {
      {"d_sink for nothing", [](auto& c) { c.args.sink_bias = {}; },
       "d_sink must be left out without sink_bias, got float16 [4]"},
      {"d_sink of another type", [](auto& c) { c.args.d_sink = with_dtype(c.args.d_sink, DType::kFP32); },
       "d_sink must be float16 [4], got float32 [4]"},
      {"another sink's type", [](auto& c) { c.args.sink_bias = with_dtype(c.args.sink_bias, DType::kInt32); },
       "sink_bias must be float32, float16 or bfloat16 [4], got int32 [4]"},
  };
}

template <class Args>
Row<Args> head_sizes_row(const std::string& known) {
  return {"head sizes of no kernel",
          [](auto& c) {
            c.args.q = with_size(c.args.q, 2, 64);
            c.args.k = with_size(c.args.k, 2, 64);
          },
          "q and v must be of d_qk/d_v " + known + ", got 64/128"};
}

TEST(DensePrefillFwdErrors, All) {
  using A = DensePrefillFwdArgs;
  expect_argument_rows<A>(dense_prefill_fwd_call);
  expect_rows<A>(dense_prefill_fwd_call, sequence_rows<A>());
  expect_rows<A>(dense_prefill_fwd_call, {head_sizes_row<A>("192/128, 128/128 or 64/64")});
}

TEST(DensePrefillBwdErrors, All) {
  using A = DensePrefillBwdArgs;
  expect_argument_rows<A>(dense_prefill_bwd_call);
  expect_rows<A>(dense_prefill_bwd_call, sequence_rows<A>());
  expect_rows<A>(dense_prefill_bwd_call, gradient_rows<A>());
  expect_rows<A>(dense_prefill_bwd_call, {head_sizes_row<A>("192/128, 128/128 or 64/64")});
}

TEST(BlockSparsePrefillFwdErrors, All) {
  using A = BlockSparsePrefillFwdArgs;
  expect_argument_rows<A>(block_sparse_prefill_fwd_call);
  expect_rows<A>(block_sparse_prefill_fwd_call, sequence_rows<A>());
  expect_rows<A>(block_sparse_prefill_fwd_call, selection_rows<A>());
  expect_rows<A>(block_sparse_prefill_fwd_call, {head_sizes_row<A>("192/128 or 128/128")});
}

TEST(BlockSparsePrefillBwdErrors, All) {
  using A = BlockSparsePrefillBwdArgs;
  expect_argument_rows<A>(block_sparse_prefill_bwd_call);
  expect_rows<A>(block_sparse_prefill_bwd_call, sequence_rows<A>());
  expect_rows<A>(block_sparse_prefill_bwd_call, selection_rows<A>());
  expect_rows<A>(block_sparse_prefill_bwd_call, gradient_rows<A>());
  expect_rows<A>(block_sparse_prefill_bwd_call, {head_sizes_row<A>("192/128 or 128/128")});
}

TEST(PrefillErrors, AcceptedForms) {
  auto shared = block_sparse_prefill_fwd_call();
  shared.args.q2k = shared.memory.input(DType::kInt32, {2, 3});
  expect_accepted(shared, "a selection that all heads share");
  auto dense = dense_prefill_fwd_call();
  for (TensorView* view : {&dense.args.q, &dense.args.k, &dense.args.v, &dense.args.out}) {
    *view = with_dtype(*view, DType::kFP16);
  }
  expect_accepted(dense, "float16");
  auto columns = dense_prefill_fwd_call();
  columns.args.lse = with(columns.args.lse, DType::kFP32, {5, 4}, {1, 5});
  expect_accepted(columns, "lse with its rows side by side");
}

TEST(ExpandBlockSelectionErrors, All) {
  using A = ExpandBlockSelectionArgs;
  expect_argument_rows<A>(expand_block_selection_call);
  expect_rows<A>(expand_block_selection_call,
                 {{"factor 0", [](auto& c) { c.args.factor = 0; }, "factor must be 1 to 715827882, got 0"},
                  {"rows past 2^31", [](auto& c) { c.args.factor = 715827883; },
                   "factor must be 1 to 715827882, got 715827883"}});
}

TEST(InvertBlockSelectionErrors, All) {
  using A = InvertBlockSelectionArgs;
  expect_argument_rows<A>(invert_block_selection_call);
  expect_rows<A>(invert_block_selection_call,
                 {{"negative num_kv_blocks", [](auto& c) { c.args.num_kv_blocks = -1; },
                   "num_kv_blocks must be 0 to 2147483646, got -1"},
                  {"another num_kv_blocks", [](auto& c) { c.args.num_kv_blocks = 4; },
                   "row_ptr must be int32 [2, 5], got int32 [2, 6]"}});
}

}  // namespace
}  // namespace tilewise::errors
