// Every error of combine_partials and combine_partials_fused.
#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

constexpr int64_t kTooMany = int64_t{1} << 31;

template <class A>
std::vector<Row<A>> common_rows() {
  return {
      {"no heads", [](auto& c) { c.args.out_partials = with_size(c.args.out_partials, 2, 0); },
       "out_partials must be of h_q 1 to 128 or a multiple of 64 above, got h_q 0"},
      {"150 heads",
       [](auto& c) { c.args.out_partials = with_stride(with_size(c.args.out_partials, 2, 150), 2, 0); },
       "out_partials must be of h_q 1 to 128 or a multiple of 64 above, got h_q 150"},
      {"too many partials",
       [](auto& c) { c.args.out_partials = with_size(with_size(c.args.out_partials, 1, 0), 0, kTooMany); },
       "out_partials must be of n 0 to 2147483647, got n 2147483648"},
      {"too many tokens",
       [](auto& c) { c.args.out_partials = with_size(with_size(c.args.out_partials, 0, 0), 1, kTooMany); },
       "out_partials must be of s_q 0 to 2147483647, got s_q 2147483648"},
      {"lse of another type",
       [](auto& c) { c.args.lse_partials = with_dtype(c.args.lse_partials, DType::kBF16); },
       "lse_partials must be float32 [2, 3, 4], got bfloat16 [2, 3, 4]"},
  };
}

TEST(CombineErrors, Plain) {
  using A = CombinePartialsArgs;
  expect_argument_rows<A>(combine_partials_call);
  expect_rows<A>(combine_partials_call, common_rows<A>());
  expect_rows<A>(
      combine_partials_call,
      {
          {"no columns", [](auto& c) { c.args.out_partials = with_size(c.args.out_partials, 3, 0); },
           "out_partials must be of d_v a multiple of 8, got d_v 0"},
          {"12 columns", [](auto& c) { c.args.out_partials = with_size(c.args.out_partials, 3, 12); },
           "out_partials must be of d_v a multiple of 8, got d_v 12"},
          {"too many columns",
           [](auto& c) {
             c.args.out_partials = with_size(with_size(c.args.out_partials, 0, 0), 3, kTooMany);
           },
           "out_partials must be of d_v 0 to 2147483647, got d_v 2147483648"},
          {"out of another width", [](auto& c) { c.args.out = with_size(c.args.out, 2, 256); },
           "out must be bfloat16, float16 or float32 [3, 4, 512], got bfloat16 [3, 4, 256]"},
      });
}

TEST(CombineErrors, AnyTypesAndWidths) {
  const DType types[] = {DType::kFP32, DType::kBF16, DType::kFP16};
  for (DType from : types) {
    for (DType to : types) {
      for (int64_t d_v : {8, 40, 512, 1024}) {
        Call<CombinePartialsArgs> call = combine_partials_call();
        call.args.out_partials = call.memory.input(from, {2, 3, 4, d_v});
        call.args.out = call.memory.output(to, {3, 4, d_v});
        expect_accepted(call, std::string(to_string(from)) + " " + to_string(to) + " " + std::to_string(d_v));
      }
    }
  }
}

TEST(CombineErrors, Fused) {
  using A = CombinePartialsFusedArgs;
  expect_argument_rows<A>(combine_partials_fused_call);
  expect_rows<A>(combine_partials_fused_call, common_rows<A>());
  expect_rows<A>(
      combine_partials_fused_call,
      {
          {"three groups", [](auto& c) { c.args.n_groups = 3; },
           "n_groups must be a divisor of h_q 4, got 3"},
          {"no group", [](auto& c) { c.args.n_groups = 0; }, "n_groups must be a divisor of h_q 4, got 0"},
          {"half a unit of alignment", [](auto& c) { c.args.out_fp8 = shifted(c.args.out_fp8, 16); },
           "out_fp8 must be memory that starts at a multiple of 32 bytes, got an address 16 bytes past one"},
          {"tokens apart", [](auto& c) { c.args.out_sf = with_stride(c.args.out_sf, 0, 2); },
           "out_sf must be of stride(0) 1, got strides [2, 32, 4]"},
          {"columns in one another", [](auto& c) { c.args.out_sf = with_stride(c.args.out_sf, 2, 2); },
           "out_sf must be of stride(2) at least 3 (s_q), got strides [1, 32, 2]"},
          {"groups in one another", [](auto& c) { c.args.out_sf = with_stride(c.args.out_sf, 1, 31); },
           "out_sf must be of stride(1) at least 8 * stride(2), got strides [1, 31, 4]"},
      });
}

}  // namespace
}  // namespace tilewise::errors
