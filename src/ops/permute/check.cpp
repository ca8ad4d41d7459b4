// Checks of the weight permutations.
#include <fmt/format.h>

#include "cuda/kernels.h"
#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {
namespace {

constexpr int64_t kGroupSizes[] = {32, 128};  // weights that share a scale
constexpr int64_t kScalesInWord = 4;

/// The CPU, or the GPU where the weight lies.
DeviceId device_of(const TensorView& weight) {
  return cuda::kBuilt && weight.device().type == DeviceType::kCuda ? weight.device() : DeviceId{};
}

void check_multiple(const Checker& check, const char* name, int64_t value, int64_t unit) {
  if (value >= unit && value <= kMaxCount && value % unit == 0) return;
  check.refuse(name, fmt::format("a positive multiple of {}", unit), fmt::format("{}", value));
}

void check_column_major(const Checker& check, const char* name, const TensorView& scales) {
  if (scales.numel() == 0) return;
  const bool columns_apart = scales.size(1) == 1 || scales.stride(1) >= scales.size(0);
  if ((scales.size(0) != 1 && scales.stride(0) != 1) || !columns_apart) {
    check.refuse(name, fmt::format("column-major, of strides (1, at least {})", scales.size(0)),
                 fmt::format("strides [{}]", fmt::join(scales.strides(), ", ")));
  }
}

}  // namespace

void check(const PermuteQBProjArgs& args) {
  Checker check("permute_q_b_proj", device_of(args.weight));
  if (args.h_q < 1 || args.h_q > kMaxCount) {
    check.refuse("h_q", fmt::format("1 to {}", kMaxCount), fmt::format("{}", args.h_q));
  }
  check_multiple(check, "d_q", args.d_q, 16);
  const int64_t rows = args.h_q * args.d_q;
  check.input("weight", args.weight, {DType::kE4M3}, {rows, "r"}, Layout::kContiguous);
  const int64_t r = args.weight.size(1);
  const int64_t small = kGroupSizes[0] * kScalesInWord;
  const int64_t large = kGroupSizes[1] * kScalesInWord;
  if (r < 1 || r % small != 0) {
    check.refuse("weight", fmt::format("of r a positive multiple of {}", small), fmt::format("r {}", r));
  }
  const Dim columns = r % large == 0 ? Dim::either(r / small, r / large) : Dim(r / small);
  check.input("scales", args.scales, {DType::kInt32}, {rows, columns}, Layout::kOwn);
  check_column_major(check, "scales", args.scales);
  check.output("weight_out", args.weight_out, {DType::kE4M3}, {rows, r}, Layout::kContiguous);
  check.output("scales_out", args.scales_out, {DType::kInt32}, {rows, args.scales.size(1)}, Layout::kOwn);
  check_column_major(check, "scales_out", args.scales_out);
  check.no_overlaps();
}

void check(const PermuteWvProjArgs& args) {
  Checker check("permute_wv_proj", device_of(args.weight));
  if (args.group_size < 1 || args.group_size > kMaxCount) {
    check.refuse("group_size", fmt::format("1 to {}", kMaxCount), fmt::format("{}", args.group_size));
  }
  if (args.d_o != 512) check.refuse("d_o", "512", fmt::format("{}", args.d_o));
  const int64_t columns = args.group_size * args.d_o;
  const int64_t words = columns / kGroupSizes[0] / kScalesInWord;
  check.input("weight", args.weight, {DType::kE4M3}, {"groups", "n", columns}, Layout::kContiguous);
  const int64_t groups = args.weight.size(0);
  const int64_t n = args.weight.size(1);
  check.count("weight", "groups", groups);
  check.count("weight", "n", n);
  check.input("scales", args.scales, {DType::kInt32}, {groups, n, words}, Layout::kContiguous);
  check.output("weight_out", args.weight_out, {DType::kE4M3}, {groups, n, columns}, Layout::kContiguous);
  check.output("scales_out", args.scales_out, {DType::kInt32}, {groups, n, words}, Layout::kContiguous);
  check.no_overlaps();
}

}  // namespace tilewise
