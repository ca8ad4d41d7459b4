// Every error of sparse_prefill_fwd.
#include <limits>

#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

using Args = SparsePrefillFwdArgs;
constexpr int64_t kTooMany = int64_t{1} << 31;

TEST(SparsePrefillErrors, Arguments) {
  expect_argument_rows<Args>(sparse_prefill_call);
  expect_argument_rows<Args>(sparse_prefill_sink_call);
}

TEST(SparsePrefillErrors, SizesAndOptions) {
  expect_rows<Args>(
      sparse_prefill_call,
      {
          {"no heads", [](auto& c) { c.args.q = with_size(c.args.q, 1, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 0"},
          {"193 heads", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 1, 193), 1, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 193"},
          {"too many tokens", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 0, kTooMany), 0, 0); },
           "q must be of s_q 0 to 2147483647, got s_q 2147483648"},
          {"a huge list",
           [](auto& c) { c.args.indices = with_stride(with_size(c.args.indices, 2, kTooMany), 0, 0); },
           "indices must be of topk 0 to 2147483647, got topk 2147483648"},
          {"keys of another head size", [](auto& c) { c.args.q = with_size(c.args.q, 2, 512); },
           "kv must be bfloat16 [s_kv, 1, 512], got bfloat16 [6, 1, 576]"},
          {"d_v 576", [](auto& c) { c.args.d_v = 576; }, "d_v must be 512, got 576"},
          {"NaN scale", [](auto& c) { c.args.softmax_scale = std::numeric_limits<float>::quiet_NaN(); },
           "softmax_scale must be finite, got nan"},
          {"both sinks", [](auto& c) { c.args.attn_sink = c.memory.input(DType::kFP32, {4}); },
           "sink_bias must be left out where attn_sink is given, got float32 [4]"},
          {"negative indexer_topk", [](auto& c) { c.args.indexer_topk = -1; },
           "indexer_topk must be 0 to 5 (topk), got -1"},
          {"indexer_topk past the list", [](auto& c) { c.args.indexer_topk = 6; },
           "indexer_topk must be 0 to 5 (topk), got 6"},
          {"lse_indexer for nothing", [](auto& c) { c.args.indexer_topk = 0; },
           "lse_indexer must be left out where indexer_topk is 0, got float32 [3, 4]"},
      });
}

TEST(SparsePrefillErrors, SinkBiasOfAnyFloat) {
  for (DType type : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    Call<Args> call = sparse_prefill_call();
    call.args.sink_bias = with_dtype(call.args.sink_bias, type);
    expect_accepted(call, to_string(type));
  }
}

}  // namespace
}  // namespace tilewise::errors
