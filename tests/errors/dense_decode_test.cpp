// Every error of dense_decode.
#include <limits>

#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

using Args = DenseDecodeArgs;
constexpr int64_t kTooMany = int64_t{1} << 31;

TEST(DenseDecodeErrors, Arguments) {
  expect_argument_rows<Args>(dense_decode_call);
  expect_argument_rows<Args>(dense_decode_fp8_call);
}

TEST(DenseDecodeErrors, Sizes) {
  expect_rows<Args>(
      dense_decode_call,
      {
          {"no heads", [](auto& c) { c.args.q = with_size(c.args.q, 2, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 0"},
          {"129 heads", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 2, 129), 2, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 129"},
          {"160 heads", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 2, 160), 2, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 160"},
          {"too many heads", [](auto& c) { c.args.q = with_size(with_size(c.args.q, 0, 0), 2, kTooMany); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 2147483648"},
          {"too many requests", [](auto& c) { c.args.q = with_size(with_size(c.args.q, 1, 0), 0, kTooMany); },
           "q must be of b 0 to 2147483647, got b 2147483648"},
          {"too many tokens", [](auto& c) { c.args.q = with_size(with_size(c.args.q, 0, 0), 1, kTooMany); },
           "q must be of s_q 0 to 2147483647, got s_q 2147483648"},
          {"no KV heads", [](auto& c) { c.args.k_cache = with_size(c.args.k_cache, 2, 0); },
           "k_cache must be of h_kv a divisor of h_q 4, got h_kv 0"},
          {"three KV heads", [](auto& c) { c.args.k_cache = with_size(c.args.k_cache, 2, 3); },
           "k_cache must be of h_kv a divisor of h_q 4, got h_kv 3"},
          {"more KV heads than heads", [](auto& c) { c.args.k_cache = with_size(c.args.k_cache, 2, 8); },
           "k_cache must be of h_kv a divisor of h_q 4, got h_kv 8"},
          {"empty pages", [](auto& c) { c.args.k_cache = with_size(c.args.k_cache, 1, 0); },
           "k_cache must be of page 1 to 2147483647, got page 0"},
          {"huge pages",
           [](auto& c) { c.args.k_cache = with_size(with_size(c.args.k_cache, 0, 0), 1, kTooMany); },
           "k_cache must be of page 1 to 2147483647, got page 2147483648"},
          {"a huge table",
           [](auto& c) {
             c.args.block_table = with_stride(with_size(c.args.block_table, 1, kTooMany), 0, 0);
           },
           "block_table must be of max_blocks 0 to 2147483647, got max_blocks 2147483648"},
      });
}

TEST(DenseDecodeErrors, Options) {
  expect_rows<Args>(
      dense_decode_call,
      {
          {"d_v 128", [](auto& c) { c.args.d_v = 128; }, "d_v must be 512, got 128"},
          {"infinite scale", [](auto& c) { c.args.softmax_scale = std::numeric_limits<float>::infinity(); },
           "softmax_scale must be finite, got inf"},
          {"NaN scale", [](auto& c) { c.args.softmax_scale = std::numeric_limits<float>::quiet_NaN(); },
           "softmax_scale must be finite, got nan"},
          {"left -2", [](auto& c) { c.args.window = {-2, 3}; },
           "window must be a pair of numbers of at least -1, got (-2, 3)"},
          {"right -2", [](auto& c) { c.args.window = {3, -2}; },
           "window must be a pair of numbers of at least -1, got (3, -2)"},
          {"causal with right 1",
           [](auto& c) {
             c.args.causal = true;
             c.args.window = {5, 1};
           },
           "window must be of right -1 or 0 where causal, got (5, 1)"},
          {"descale_q for bf16", [](auto& c) { c.args.descale_q = c.memory.input(DType::kFP32, {1}); },
           "descale_q must be left out where q is bfloat16, got float32 [1]"},
          {"descale_k for bf16", [](auto& c) { c.args.descale_k = c.memory.input(DType::kFP32, {1}); },
           "descale_k must be left out where q is bfloat16, got float32 [1]"},
          {"float16 keys", [](auto& c) { c.args.k_cache = with_dtype(c.args.k_cache, DType::kFP16); },
           "k_cache must be bfloat16 [num_blocks, page, h_kv, 576], got float16 [3, 5, 2, 576]"},
          {"float16 output", [](auto& c) { c.args.out = with_dtype(c.args.out, DType::kFP16); },
           "out must be bfloat16 [2, 3, 4, 512], got float16 [2, 3, 4, 512]"},
          {"int64 table", [](auto& c) { c.args.block_table = with_dtype(c.args.block_table, DType::kInt64); },
           "block_table must be int32 [2, max_blocks], got int64 [2, 2]"},
      });
}

TEST(DenseDecodeErrors, OneHeadSizeForQueriesAndKeys) {
  Call<Args> call = dense_decode_call();
  call.args.q = with_size(call.args.q, 3, 512);
  expect_refused(dense_decode_call(), call,
                 "k_cache must be bfloat16 [num_blocks, page, h_kv, 512], got bfloat16 [3, 5, 2, 576]");
}

TEST(DenseDecodeErrors, OutputsInGapsOfOthers) {
  // Queries and outputs side by side in one buffer.
  Call<Args> call = dense_decode_call();
  const TensorView both = call.memory.input(DType::kBF16, {2, 3, 4, 1088});
  call.args.q = with_size(both, 3, 576);
  call.args.out = with_size(shifted(both, 2 * 576), 3, 512);
  expect_accepted(call, "columns of one buffer");
  call.args.out = with_size(shifted(both, 2 * 568), 3, 512);
  expect_refused(dense_decode_call(), call, "out must be in memory apart from q, got an overlap");
}

}  // namespace
}  // namespace tilewise::errors
