// permute_q_b_proj and permute_wv_proj: moves of whole weight rows and of 32-column groups.
#include <cstring>

#include "casefile/on_error.h"
#include "cuda/kernels.h"
#include "ops/checks.h"
#include "ops/permute/order.h"

namespace tilewise {
namespace {

bool on_gpu(const TensorView& view) { return view.device().type == DeviceType::kCuda; }

}  // namespace

void permute_q_b_proj(const PermuteQBProjArgs& args, Stream stream) {
  casefile::or_saved(args, [&] { check(args); });
  if (on_gpu(args.weight)) return cuda::permute_q_b_proj(args, stream);
  const int64_t rows = args.weight.size(0);
  const int64_t row_bytes = args.weight.size(1);
  const int64_t columns = args.scales.size(1);
  const auto* weight = args.weight.data_as<const uint8_t>();
  const auto* scales = args.scales.data_as<const int32_t>();
  auto* weight_out = args.weight_out.data_as<uint8_t>();
  auto* scales_out = args.scales_out.data_as<int32_t>();
  const int64_t column_in = args.scales.stride(1);
  const int64_t column_out = args.scales_out.stride(1);
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t to = permuted(row / args.d_q, row % args.d_q, args.h_q, kRowGroup);
    std::memcpy(weight_out + to * row_bytes, weight + row * row_bytes, static_cast<size_t>(row_bytes));
    for (int64_t k = 0; k < columns; ++k) scales_out[to + k * column_out] = scales[row + k * column_in];
  }
}

void permute_wv_proj(const PermuteWvProjArgs& args, Stream stream) {
  casefile::or_saved(args, [&] { check(args); });
  if (on_gpu(args.weight)) return cuda::permute_wv_proj(args, stream);
  const int64_t rows = args.weight.size(0) * args.weight.size(1);
  const int64_t row_bytes = args.weight.size(2);
  const int64_t groups = row_bytes / kColumnGroup;
  const auto* weight = args.weight.data_as<const uint8_t>();
  const auto* scales = args.scales.data_as<const uint8_t>();  // one byte a column group
  auto* weight_out = args.weight_out.data_as<uint8_t>();
  auto* scales_out = args.scales_out.data_as<uint8_t>();
  const int64_t groups_per_head = args.d_o / kColumnGroup;
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t to = permuted(g / groups_per_head, g % groups_per_head, args.group_size, 1);
      std::memcpy(weight_out + row * row_bytes + to * kColumnGroup,
                  weight + row * row_bytes + g * kColumnGroup, kColumnGroup);
      scales_out[row * groups + to] = scales[row * groups + g];
    }
  }
}

}  // namespace tilewise
