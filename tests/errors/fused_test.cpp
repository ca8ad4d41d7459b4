// Every error of fused_prefill, fused_decode and fused_decode_partials.
#include <limits>

#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

constexpr int64_t kTooMany = int64_t{1} << 31;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Of the parts that all three forms share.
template <class A>
std::vector<Row<A>> common_rows() {
  return {
      {"no heads", [](auto& c) { c.args.q = with_size(c.args.q, 1, 0); },
       "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 0"},
      {"gaps between heads", [](auto& c) { c.args.q = with_stride(c.args.q, 1, 520); },
       "q must be contiguous within a token, got stride(1) 520"},
      {"gaps between channels", [](auto& c) { c.args.q = with_stride(c.args.q, 2, 2); },
       "q must be contiguous in its last dimension, got stride(2) 2"},
      {"tokens at half units", [](auto& c) { c.args.q = with_stride(c.args.q, 0, 2052); },
       "q must be of strides of whole 16 bytes, got stride(0) of 4104 bytes"},
      {"too many tokens", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 0, kTooMany), 0, 0); },
       "q must be of s_q 0 to 2147483647, got s_q 2147483648"},
      {"no positions", [](auto& c) { c.args.cos_sin_cache = with_size(c.args.cos_sin_cache, 0, 0); },
       "cos_sin_cache must be of max_pos 1 to 2147483647, got max_pos 0"},
      {"too many positions",
       [](auto& c) {
         c.args.cos_sin_cache = with_stride(with_size(c.args.cos_sin_cache, 0, kTooMany), 0, 0);
       },
       "cos_sin_cache must be of max_pos 1 to 2147483647, got max_pos 2147483648"},
      {"three groups", [](auto& c) { c.args.n_groups = 3; }, "n_groups must be a divisor of h_q 4, got 3"},
      {"no group", [](auto& c) { c.args.n_groups = 0; }, "n_groups must be a divisor of h_q 4, got 0"},
      {"minus one group", [](auto& c) { c.args.n_groups = -1; },
       "n_groups must be a divisor of h_q 4, got -1"},
      {"eight groups", [](auto& c) { c.args.n_groups = 8; }, "n_groups must be a divisor of h_q 4, got 8"},
      {"infinite scale", [](auto& c) { c.args.softmax_scale = kInfinity; },
       "softmax_scale must be finite, got inf"},
      {"negative eps", [](auto& c) { c.args.q_norm_eps = -1e-6f; },
       "q_norm_eps must be finite and at least 0, got -1e-06"},
      {"infinite eps", [](auto& c) { c.args.q_norm_eps = kInfinity; },
       "q_norm_eps must be finite and at least 0, got inf"},
      {"NaN eps", [](auto& c) { c.args.q_norm_eps = kNaN; },
       "q_norm_eps must be finite and at least 0, got nan"},
  };
}

/// Of the paged caches.
template <class A>
std::vector<Row<A>> cache_rows() {
  const auto alone = [](auto& c) {
    c.args.extra_cache = {};
    c.args.extra_indices = {};
    c.args.extra_topk_length = {};
    c.args.extra_record = Record::kAuto;
  };
  return {
      {"indices alone",
       [alone](auto& c) {
         alone(c);
         c.args.extra_indices = c.args.indices;
       },
       "extra_cache must be given with extra_indices, got nothing"},
      {"lengths alone",
       [alone](auto& c) {
         alone(c);
         c.args.extra_topk_length = c.args.topk_length;
       },
       "extra_topk_length must be left out without extra_cache, got int32 [3]"},
      {"a record alone",
       [alone](auto& c) {
         alone(c);
         c.args.extra_record = Record::kV41MainFp4;
       },
       "extra_record must be auto without extra_cache, got v41_main_fp4"},
      {"a head size of 576", [](auto& c) { c.args.record = Record::kV32Fp8; },
       "record must be auto or a record of head size 512 (v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, "
       "v41_fp8_row, "
       "v41_fp4_row, v41_main_fp4 or bf16), got v32_fp8 of head size 576"},
      {"a record that is never the main cache's",
       [](auto& c) {
         c.args.record = Record::kV41MainFp4;
         c.args.kv_cache = c.args.extra_cache;
       },
       "record must be a record for a main cache (v32_nope_fp8, v4_fp8, v41_fp8, v41_fp8_row or bf16), got "
       "v41_main_fp4"},
      {"a pair that does not go together",
       [](auto& c) {
         c.args.extra_record = Record::kV41Fp4;
         c.args.extra_cache = pages_of(c.memory, Record::kV41Fp4, 512);
       },
       "extra_record must be a record that goes with v4_fp8 (v4_fp8 or v41_main_fp4), got v41_fp4"},
      {"empty pages", [](auto& c) { c.args.kv_cache = with_size(c.args.kv_cache, 1, 0); },
       "kv_cache must be of page 1 to 2147483647, got page 0"},
      {"a huge list",
       [](auto& c) { c.args.indices = with_stride(with_size(c.args.indices, 1, kTooMany), 0, 0); },
       "indices must be of topk 0 to 2147483647, got topk 2147483648"},
      {"a huge extra list",
       [](auto& c) {
         c.args.extra_indices = with_stride(with_size(c.args.extra_indices, 1, kTooMany), 0, 0);
       },
       "extra_indices must be of extra_topk 0 to 2147483647, got extra_topk 2147483648"},
  };
}

/// Of out_fp8 and out_sf, [3, 2, 8] with strides (1, 32, 4) when unspoilt.
template <class A>
std::vector<Row<A>> output_rows() {
  return {
      {"no output", [](auto& c) { c.args.out_fp8 = c.args.out_sf = c.args.out_bf16 = {}; },
       "out_fp8 must be given where out_bf16 is not, got nothing"},
      {"half a unit of alignment", [](auto& c) { c.args.out_fp8 = shifted(c.args.out_fp8, 16); },
       "out_fp8 must be memory that starts at a multiple of 32 bytes, got an address 16 bytes past one"},
      {"tokens apart", [](auto& c) { c.args.out_sf = with_stride(c.args.out_sf, 0, 2); },
       "out_sf must be of stride(0) 1, got strides [2, 32, 4]"},
      {"columns in one another", [](auto& c) { c.args.out_sf = with_stride(c.args.out_sf, 2, 2); },
       "out_sf must be of stride(2) at least 3 (s_q), got strides [1, 32, 2]"},
      {"groups in one another", [](auto& c) { c.args.out_sf = with_stride(c.args.out_sf, 1, 31); },
       "out_sf must be of stride(1) at least 8 * stride(2), got strides [1, 31, 4]"},
      {"row-major scales", [](auto& c) { c.args.out_sf = c.memory.output(DType::kInt32, {3, 2, 8}); },
       "out_sf must be of stride(0) 1, got strides [16, 8, 1]"},
      {"fp8 as bytes", [](auto& c) { c.args.out_fp8 = with_dtype(c.args.out_fp8, DType::kUInt8); },
       "out_fp8 must be float8_e4m3fn [3, 2, 1024], got uint8 [3, 2, 1024]"},
  };
}

TEST(FusedPrefillErrors, All) {
  using A = FusedPrefillArgs;
  expect_argument_rows<A>(fused_prefill_call);
  expect_rows<A>(fused_prefill_call, common_rows<A>());
  expect_rows<A>(fused_prefill_call, output_rows<A>());
  expect_rows<A>(
      fused_prefill_call,
      {{"a huge list",
        [](auto& c) { c.args.indices = with_stride(with_size(c.args.indices, 2, kTooMany), 0, 0); },
        "indices must be of topk 0 to 2147483647, got topk 2147483648"}});
}

TEST(FusedDecodeErrors, All) {
  using A = FusedDecodeArgs;
  expect_argument_rows<A>(fused_decode_call);
  expect_rows<A>(fused_decode_call, common_rows<A>());
  expect_rows<A>(fused_decode_call, cache_rows<A>());
  expect_rows<A>(fused_decode_call, output_rows<A>());
  expect_rows<A>(fused_decode_call,
                 {{"max_logits", [](auto& c) { c.args.max_logits = c.memory.output(DType::kFP32, {3, 4}); },
                   "max_logits must be left out, got float32 [3, 4]"}});
}

TEST(FusedDecodePartialsErrors, All) {
  using A = FusedDecodePartialsArgs;
  expect_argument_rows<A>(fused_decode_partials_call);
  expect_rows<A>(fused_decode_partials_call, common_rows<A>());
  expect_rows<A>(fused_decode_partials_call, cache_rows<A>());
  expect_rows<A>(
      fused_decode_partials_call,
      {
          {"no split", [](auto& c) { c.args.num_splits = 0; }, "num_splits must be 1 to 2147483647, got 0"},
          {"too many splits", [](auto& c) { c.args.num_splits = kTooMany; },
           "num_splits must be 1 to 2147483647, got 2147483648"},
          {"other splits", [](auto& c) { c.args.num_splits = 3; },
           "o_accum must be float32 [3, 3, 4, 512], got float32 [2, 3, 4, 512]"},
      });
}

}  // namespace
}  // namespace tilewise::errors
