// Every error of sparse_prefill_bwd.
#include <limits>

#include "tests/errors/refusal.h"
#include "tests/errors/training_calls.h"

namespace tilewise::errors {
namespace {

using Args = SparsePrefillBwdArgs;
constexpr int64_t kTooMany = int64_t{1} << 31;

TEST(SparsePrefillBwdErrors, Arguments) { expect_argument_rows<Args>(sparse_prefill_bwd_call); }

TEST(SparsePrefillBwdErrors, SizesAndOptions) {
  expect_rows<Args>(
      sparse_prefill_bwd_call,
      {
          {"no heads", [](auto& c) { c.args.q = with_size(c.args.q, 1, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 0"},
          {"193 heads", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 1, 193), 1, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 193"},
          {"too many tokens", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 0, kTooMany), 0, 0); },
           "q must be of s_q 0 to 2147483647, got s_q 2147483648"},
          {"too many keys", [](auto& c) { c.args.kv = with_stride(with_size(c.args.kv, 0, kTooMany), 0, 0); },
           "kv must be of s_kv 0 to 2147483647, got s_kv 2147483648"},
          {"a huge list",
           [](auto& c) { c.args.indices = with_stride(with_size(c.args.indices, 2, kTooMany), 0, 0); },
           "indices must be of topk 0 to 2147483647, got topk 2147483648"},
          {"keys of another head size", [](auto& c) { c.args.q = with_size(c.args.q, 2, 512); },
           "kv must be bfloat16 [s_kv, 1, 512], got bfloat16 [6, 1, 576]"},
          {"another list than kl_target", [](auto& c) { c.args.indices = with_size(c.args.indices, 2, 4); },
           "kl_target must be float32 [3, 4], got float32 [3, 5]"},
          {"other keys than dkv", [](auto& c) { c.args.kv = with_size(c.args.kv, 0, 7); },
           "dkv must be bfloat16 [7, 1, 576], got bfloat16 [6, 1, 576]"},
          {"d_v 576", [](auto& c) { c.args.d_v = 576; }, "d_v must be 512, got 576"},
          {"infinite scale", [](auto& c) { c.args.softmax_scale = std::numeric_limits<float>::infinity(); },
           "softmax_scale must be finite, got inf"},
          {"d_sink for nothing", [](auto& c) { c.args.sink_bias = {}; },
           "d_sink must be left out without sink_bias, got float16 [4]"},
          {"d_sink of another type", [](auto& c) { c.args.d_sink = with_dtype(c.args.d_sink, DType::kBF16); },
           "d_sink must be float16 [4], got bfloat16 [4]"},
          {"a sink of integers",
           [](auto& c) { c.args.sink_bias = with_dtype(c.args.sink_bias, DType::kInt32); },
           "sink_bias must be float32, float16 or bfloat16 [4], got int32 [4]"},
          {"a sink of other heads", [](auto& c) { c.args.sink_bias = with_size(c.args.sink_bias, 0, 5); },
           "sink_bias must be float32, float16 or bfloat16 [4], got float16 [5]"},
          {"dq over q", [](auto& c) { c.args.dq = at_address(c.args.dq, c.args.q.data()); },
           "dq must be in memory apart from q, got an overlap"},
      });
}

TEST(SparsePrefillBwdErrors, AcceptedForms) {
  Call<Args> call = sparse_prefill_bwd_call();
  call.args.sink_bias = {};
  call.args.d_sink = {};
  call.args.kl_target = {};
  call.args.topk_length = {};
  expect_accepted(call, "nothing that is optional");
  for (DType type : {DType::kBF16, DType::kFP16, DType::kFP32}) {
    call.args.sink_bias = call.memory.input(type, {4});
    call.args.d_sink = call.memory.output(type, {4});
    expect_accepted(call, to_string(type));
  }
}

}  // namespace
}  // namespace tilewise::errors
