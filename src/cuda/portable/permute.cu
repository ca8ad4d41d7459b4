// The weight permutations: a block moves a row, or the column groups of one.
#include "cuda/common/launch.h"
#include "cuda/kernels.h"
#include "ops/permute/order.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 128;

struct RowMoves {
  const uint4* weight;  // [rows][row_pieces]
  uint4* weight_out;
  int64_t row_pieces;
  const int32_t* scales;  // [rows], a column every column_in
  int32_t* scales_out;
  int64_t columns;
  int64_t column_in;
  int64_t column_out;
  int64_t h_q;
  int64_t d_q;
};

__global__ void __launch_bounds__(kThreads) move_rows(const __grid_constant__ RowMoves p) {
  const int64_t row = blockIdx.x;
  const int64_t to = permuted(row / p.d_q, row % p.d_q, p.h_q, kRowGroup);
  for (int64_t i = threadIdx.x; i < p.row_pieces; i += kThreads) {
    p.weight_out[to * p.row_pieces + i] = p.weight[row * p.row_pieces + i];
  }
  for (int64_t k = threadIdx.x; k < p.columns; k += kThreads) {
    p.scales_out[to + k * p.column_out] = p.scales[row + k * p.column_in];
  }
}

struct ColumnMoves {
  const uint4* weight;  // [rows][groups][2]
  uint4* weight_out;
  const uint8_t* scales;  // [rows][groups]
  uint8_t* scales_out;
  int64_t groups;
  int64_t groups_of_head;
  int64_t heads;
};

__global__ void __launch_bounds__(kThreads) move_columns(const __grid_constant__ ColumnMoves p) {
  constexpr int kPieces = kColumnGroup / sizeof(uint4);
  const int64_t first = int64_t{blockIdx.x} * p.groups;
  for (int64_t g = threadIdx.x; g < p.groups; g += kThreads) {
    const int64_t to = permuted(g / p.groups_of_head, g % p.groups_of_head, p.heads, 1);
    for (int i = 0; i < kPieces; ++i) {
      p.weight_out[(first + to) * kPieces + i] = p.weight[(first + g) * kPieces + i];
    }
    p.scales_out[first + to] = p.scales[first + g];
  }
}

Launch launch_of(const char* op, int64_t rows, Stream stream) {
  return {.op = op,
          .name = "cuda_portable",
          .blocks = rows,
          .threads = kThreads,
          .stream = static_cast<cudaStream_t>(stream.handle)};
}

}  // namespace

const bool kBuilt = true;

void permute_q_b_proj(const PermuteQBProjArgs& args, Stream stream) {
  const DeviceGuard device(args.weight.device().index);
  const RowMoves moves{.weight = args.weight.data_as<const uint4>(),
                       .weight_out = args.weight_out.data_as<uint4>(),
                       .row_pieces = args.weight.size(1) / static_cast<int64_t>(sizeof(uint4)),
                       .scales = args.scales.data_as<const int32_t>(),
                       .scales_out = args.scales_out.data_as<int32_t>(),
                       .columns = args.scales.size(1),
                       .column_in = args.scales.stride(1),
                       .column_out = args.scales_out.stride(1),
                       .h_q = args.h_q,
                       .d_q = args.d_q};
  launch(launch_of("permute_q_b_proj", args.weight.size(0), stream), &move_rows, moves);
}

void permute_wv_proj(const PermuteWvProjArgs& args, Stream stream) {
  const DeviceGuard device(args.weight.device().index);
  const ColumnMoves moves{.weight = args.weight.data_as<const uint4>(),
                          .weight_out = args.weight_out.data_as<uint4>(),
                          .scales = args.scales.data_as<const uint8_t>(),
                          .scales_out = args.scales_out.data_as<uint8_t>(),
                          .groups = args.weight.size(2) / kColumnGroup,
                          .groups_of_head = args.d_o / kColumnGroup,
                          .heads = args.group_size};
  launch(launch_of("permute_wv_proj", args.weight.size(0) * args.weight.size(1), stream), &move_columns,
         moves);
}

}  // namespace tilewise::cuda
