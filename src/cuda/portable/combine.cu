// Merging partial results. The weights are made in double, one a lane; merge.cuh says who adds up what.
#include <cstdint>
#include <string>

#include "cuda/common/launch.h"
#include "cuda/kernels.h"
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/merge.cuh"
#include "softmax/state.h"
#include "tilewise/error.h"

namespace tilewise::cuda {
namespace {

/// CombineProblem without what only the host needs.
struct CombineParams {
  Fp8Tensors fp8;
  bool casts;
  bool has_sink;
  softmax::LogBase base;
  DType partial_dtype;
  DType out_dtype;
  int64_t num_units;
  int64_t num_partials;
  int64_t h_q;
  int64_t d_v;
  CastGroups cast;
  RowTensor<const uint8_t> partials;
  RowTensor<const float> partial_lse;
  const float* sink;
  int64_t sink_stride;
  RowTensor<uint8_t> out;
  RowTensor<float> lse;
};

__device__ double sum_of_warp(double value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ softmax::PartialState state_of_row(const CombineParams& p, int64_t token, int64_t head, int lane) {
  softmax::PartialState state;
  for (int64_t i = lane; i < p.num_partials; i += 32) {
    const float lse = *p.partial_lse.at(i, token, head);
    if (!softmax::is_empty_partial(lse)) state.max = max_or_nan(state.max, lse);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    state.max = max_or_nan(state.max, __shfl_xor_sync(kAllLanes, state.max, step));
  }
  for (int64_t i = lane; i < p.num_partials; i += 32) {
    const float lse = *p.partial_lse.at(i, token, head);
    if (!softmax::is_empty_partial(lse)) state.sum += softmax::power_of(p.base, double{lse} - state.max);
  }
  state.sum = sum_of_warp(state.sum);
  return state;
}

// Four columns of a partial row.
__device__ float4 load_columns(const uint8_t* row, DType type, int64_t column) {
  if (type == DType::kFP32) {
    const float* from = reinterpret_cast<const float*>(row) + column;
    if (is_aligned(row)) return *reinterpret_cast<const float4*>(from);
    return {from[0], from[1], from[2], from[3]};
  }
  const uint2 pairs = *reinterpret_cast<const uint2*>(row + 2 * column);
  if (type == DType::kFP16) {
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(pairs.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(pairs.y));
    return {low.x, low.y, high.x, high.y};
  }
  return {__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xFFFF0000u),
          __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xFFFF0000u)};
}

__global__ void __launch_bounds__(32 * kMostGroups) combine_kernel(const __grid_constant__ CombineParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const MergePlace place = MergePlace::of(p.num_partials);
  const bool exists = place.unit < p.num_units;
  const int64_t slices = (p.d_v + kSliceColumns - 1) / kSliceColumns;
  const auto slice = static_cast<int>(visit::remainder32(place.unit, slices));
  const int64_t row = exists ? visit::quotient32(place.unit, slices) : 0;
  const int64_t token = visit::quotient32(row, p.h_q);
  const int64_t head = visit::remainder32(row, p.h_q);
  const softmax::PartialState state = state_of_row(p, token, head, lane);
  const double lse = softmax::merged_lse(state, p.base);
  const double factor = p.has_sink ? softmax::sink_factor(lse, p.sink[head * p.sink_stride]) : 1.0;
  RowValues<1, 4> o{.v = {}, .first = slice};
  const int64_t column = o.column(0, lane);
  // A sink that takes all the weight leaves exact zeros.
  const bool empty = !exists || softmax::is_lonely(state) || factor == 0.0;
  const bool has_sum = add_up_pieces(
      empty ? 0 : p.num_partials, place,
      [&](int64_t i) {
        const float own = *p.partial_lse.at(i, token, head);
        const double weight = softmax::partial_weight(state, own, p.base) * factor;
        return PieceWeight{static_cast<float>(weight), !softmax::is_empty_partial(own)};
      },
      [&](int64_t i) {
        return column < p.d_v ? load_columns(p.partials.at(i, token, head), p.partial_dtype, column)
                              : float4{};
      },
      o);
  if (!has_sum || !exists) return;
  if (p.casts) {
    store_fp8(p.fp8, p.cast, token, head, o, lane);
  } else {
    store_values(o, p.out_dtype, p.out.at(0, token, head), lane, p.d_v);
  }
  if (slice == 0 && lane == 0 && p.lse.data != nullptr) {
    *p.lse.at(0, token, head) = static_cast<float>(lse);
  }
}

class PortableCombine final : public Kernel<Combine> {
 public:
  const std::string& name() const override {
    static const std::string name = "cuda_portable";
    return name;
  }

  std::optional<std::string> refusal(const CombineShape&, const Device& device) const override {
    return device_refusal(device);
  }

  RowsPlan plan(const CombineShape&, const Device&, Ledger&) const override { return {}; }

  void run(const CombineProblem& problem, const RowsPlan&, const RunPlace& place) const override {
    const DeviceGuard device(place.device.index);
    const CombineShape& shape = problem.shape;
    const int64_t units = shape.s_q * shape.h_q * visit::ceil_div(shape.d_v, kSliceColumns);
    if (units > UINT32_MAX) throw CudaError(shape.op + ": more rows than a launch can have");
    const CombineParams params{.fp8 = problem,
                               .casts = shape.fp8,
                               .has_sink = shape.has_sink,
                               .base = shape.base2 ? softmax::LogBase::kTwo : softmax::LogBase::kE,
                               .partial_dtype = shape.partial_dtype,
                               .out_dtype = shape.out_dtype,
                               .num_units = units,
                               .num_partials = shape.num_partials,
                               .h_q = shape.h_q,
                               .d_v = shape.d_v,
                               .cast = CastGroups::of(shape.h_q, shape.fp8 ? shape.n_groups : 1),
                               .partials = problem.partials,
                               .partial_lse = problem.partial_lse,
                               .sink = problem.sink,
                               .sink_stride = problem.sink_stride,
                               .out = problem.out,
                               .lse = problem.lse};
    const MergeGrid grid = merge_grid(units, shape.num_partials);
    launch({.op = shape.op.c_str(),
            .name = name().c_str(),
            .blocks = grid.blocks,
            .threads = grid.threads,
            .stream = static_cast<cudaStream_t>(place.stream.handle)},
           &combine_kernel, params);
  }
};

}  // namespace

KernelTable<Combine> combine_kernels() {
  static const PortableCombine portable;
  static const Kernel<Combine>* const rows[] = {&portable};
  return rows;
}

}  // namespace tilewise::cuda
