// Every error of permute_q_b_proj and permute_wv_proj.
#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

constexpr int64_t kTooMany = int64_t{1} << 31;

TEST(PermuteQBProjErrors, All) {
  using A = PermuteQBProjArgs;
  expect_argument_rows<A>(permute_q_b_proj_call);
  expect_rows<A>(
      permute_q_b_proj_call,
      {
          {"no heads", [](auto& c) { c.args.h_q = 0; }, "h_q must be 1 to 2147483647, got 0"},
          {"too many heads", [](auto& c) { c.args.h_q = kTooMany; },
           "h_q must be 1 to 2147483647, got 2147483648"},
          {"d_q 0", [](auto& c) { c.args.d_q = 0; }, "d_q must be a positive multiple of 16, got 0"},
          {"d_q 24", [](auto& c) { c.args.d_q = 24; }, "d_q must be a positive multiple of 16, got 24"},
          {"d_q -16", [](auto& c) { c.args.d_q = -16; }, "d_q must be a positive multiple of 16, got -16"},
          {"d_q too large", [](auto& c) { c.args.d_q = kTooMany; },
           "d_q must be a positive multiple of 16, got 2147483648"},
          {"another number of rows", [](auto& c) { c.args.h_q = 6; },
           "weight must be float8_e4m3fn [192, r], got float8_e4m3fn [96, 1024]"},
          {"no column", [](auto& c) { c.args.weight = c.memory.input(DType::kE4M3, {96, 0}); },
           "weight must be of r a positive multiple of 128, got r 0"},
          {"192 columns", [](auto& c) { c.args.weight = c.memory.input(DType::kE4M3, {96, 192}); },
           "weight must be of r a positive multiple of 128, got r 192"},
          {"640 columns, as only granularity 32 has them",
           [](auto& c) { c.args.weight = c.memory.input(DType::kE4M3, {96, 640}); },
           "scales must be int32 [96, 5], got int32 [96, 2]"},
          {"row-major scales", [](auto& c) { c.args.scales = c.memory.input(DType::kInt32, {96, 2}); },
           "scales must be column-major, of strides (1, at least 96), got strides [2, 1]"},
          {"scale columns in one another", [](auto& c) { c.args.scales = with_stride(c.args.scales, 1, 95); },
           "scales must be column-major, of strides (1, at least 96), got strides [1, 95]"},
          {"row-major result", [](auto& c) { c.args.scales_out = c.memory.output(DType::kInt32, {96, 2}); },
           "scales_out must be column-major, of strides (1, at least 96), got strides [2, 1]"},
          {"result columns in one another",
           [](auto& c) { c.args.scales_out = with_stride(c.args.scales_out, 1, 95); },
           "scales_out must be column-major, of strides (1, at least 96), got strides [1, 95]"},
          {"a result of another granularity",
           [](auto& c) { c.args.scales_out = column_major(c.memory.output(DType::kInt32, {8, 97}), 96, 8); },
           "scales_out must be int32 [96, 2], got int32 [96, 8]"},
      });
}

TEST(PermuteWvProjErrors, All) {
  using A = PermuteWvProjArgs;
  expect_argument_rows<A>(permute_wv_proj_call);
  expect_rows<A>(permute_wv_proj_call,
                 {
                     {"no head in a group", [](auto& c) { c.args.group_size = 0; },
                      "group_size must be 1 to 2147483647, got 0"},
                     {"too many heads", [](auto& c) { c.args.group_size = kTooMany; },
                      "group_size must be 1 to 2147483647, got 2147483648"},
                     {"another size", [](auto& c) { c.args.group_size = 2; },
                      "weight must be float8_e4m3fn [groups, n, 1024], got float8_e4m3fn [2, 5, 1536]"},
                     {"d_o 128", [](auto& c) { c.args.d_o = 128; }, "d_o must be 512, got 128"},
                     {"too many groups",
                      [](auto& c) { c.args.weight = with_size(with_size(c.args.weight, 1, 0), 0, kTooMany); },
                      "weight must be of groups 0 to 2147483647, got groups 2147483648"},
                     {"too many rows",
                      [](auto& c) { c.args.weight = with_size(with_size(c.args.weight, 0, 0), 1, kTooMany); },
                      "weight must be of n 0 to 2147483647, got n 2147483648"},
                 });
}

}  // namespace
}  // namespace tilewise::errors
