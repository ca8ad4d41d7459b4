// KV rows into cache records and back. A thread moves one unit of a token at a time (formats/codec.h), with
// the same functions as the CPU, so that the bytes are the same.
#include <string>

#include "cuda/common/launch.h"
#include "cuda/kernels.h"
#include "formats/codec.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsOfBlock = 32;

struct KvMoveParams {
  formats::RecordSpec spec;
  int32_t units;
  uint16_t* x;
  int64_t x_stride;
  int64_t n;
  uint8_t* pages;
  int64_t block_stride;
  int64_t page;
  int64_t slots;  // in all pages
  const void* slot_of_row;
  int64_t slot_stride;
  bool wide_slots;  // int64
};

constexpr int kLongestRow = 576;
__device__ const BF16 kZeroRow[kLongestRow] = {};

__device__ const BF16* row_of(const KvMoveParams& p, int64_t row) {
  return reinterpret_cast<const BF16*>(p.x) + row * p.x_stride;
}

__device__ void encode(const KvMoveParams& p, const BF16* x, int64_t slot, int32_t unit) {
  uint8_t* page = p.pages + slot / p.page * p.block_stride;
  formats::encode_unit(p.spec, x, page, p.page, slot % p.page, unit);
  if (unit == 0 && p.spec.scales.padding > 0) formats::encode_padding(p.spec, page, p.page, slot % p.page);
}

// Slots behind the last row get what a row of zeros gives.
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ KvMoveParams p) {
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock;
  for (int i = threadIdx.x; i < kRowsOfBlock * p.units; i += kThreads) {
    const int64_t slot = first + i / p.units;
    if (slot >= p.slots) continue;
    if (slot < p.n) {
      encode(p, row_of(p, slot), slot, i % p.units);
    } else {
      encode(p, kZeroRow, slot, i % p.units);
    }
  }
}

__global__ void __launch_bounds__(kThreads) dequantize_kernel(const __grid_constant__ KvMoveParams p) {
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock;
  for (int i = threadIdx.x; i < kRowsOfBlock * p.units; i += kThreads) {
    const int64_t slot = first + i / p.units;
    if (slot >= p.slots) continue;
    formats::decode_unit(p.spec, p.pages + slot / p.page * p.block_stride, p.page, slot % p.page, i % p.units,
                         reinterpret_cast<BF16*>(p.x) + slot * p.x_stride);
  }
}

__device__ int64_t slot_at(const KvMoveParams& p, int64_t row) {
  return p.wide_slots ? static_cast<const int64_t*>(p.slot_of_row)[row * p.slot_stride]
                      : static_cast<const int32_t*>(p.slot_of_row)[row * p.slot_stride];
}

// Of equal slots the last row wins: a block looks through all rows behind its own and drops what is written
// again later.
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ KvMoveParams p) {
  __shared__ int64_t slots[kRowsOfBlock];
  __shared__ int dropped[kRowsOfBlock];
  const int64_t first = int64_t{blockIdx.x} * kRowsOfBlock;
  if (threadIdx.x < kRowsOfBlock) {
    const int64_t row = first + threadIdx.x;
    const int64_t slot = row < p.n ? slot_at(p, row) : -1;
    slots[threadIdx.x] = slot;
    dropped[threadIdx.x] = slot < 0 || slot >= p.slots ? 1 : 0;
  }
  __syncthreads();
  for (int64_t later = first + 1 + threadIdx.x; later < p.n; later += kThreads) {
    const int64_t slot = slot_at(p, later);
    for (int i = 0; i < kRowsOfBlock; ++i) {
      if (slots[i] == slot && first + i < later) dropped[i] = 1;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRowsOfBlock * p.units; i += kThreads) {
    const int row = i / p.units;
    if (dropped[row] == 0) encode(p, row_of(p, first + row), slots[row], i % p.units);
  }
}

class PortableKvMove final : public Kernel<KvMoveFamily> {
 public:
  const std::string& name() const override {
    static const std::string name = "cuda_portable";
    return name;
  }

  std::optional<std::string> refusal(const KvMoveShape&, const Device& device) const override {
    return device_refusal(device);
  }

  RowsPlan plan(const KvMoveShape&, const Device&, Ledger&) const override { return {}; }

  void run(const KvMoveProblem& problem, const RowsPlan&, const RunPlace& place) const override {
    const DeviceGuard device(place.device.index);
    const KvMoveShape& shape = problem.shape;
    const formats::RecordSpec spec = formats::record_spec(shape.record, static_cast<int32_t>(shape.d));
    const KvMoveParams params{.spec = spec,
                              .units = formats::num_units(spec),
                              .x = problem.x,
                              .x_stride = problem.x_stride,
                              .n = shape.n,
                              .pages = problem.pages,
                              .block_stride = problem.block_stride,
                              .page = shape.page,
                              .slots = shape.num_blocks * shape.page,
                              .slot_of_row = problem.slots,
                              .slot_stride = problem.slot_stride,
                              .wide_slots = shape.slot_dtype == DType::kInt64};
    const int64_t rows = shape.move == KvMove::kAppend ? params.n : params.slots;
    launch({.op = shape.op.c_str(),
            .name = name().c_str(),
            .blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock,
            .threads = kThreads,
            .stream = static_cast<cudaStream_t>(place.stream.handle)},
           kernel_of(shape.move), params);
  }

 private:
  static void (*kernel_of(KvMove move))(KvMoveParams) {
    switch (move) {
      case KvMove::kQuantize:
        return &quantize_kernel;
      case KvMove::kDequantize:
        return &dequantize_kernel;
      case KvMove::kAppend:
        break;
    }
    return &append_kernel;
  }
};

}  // namespace

KernelTable<KvMoveFamily> kv_move_kernels() {
  static const PortableKvMove portable;
  static const Kernel<KvMoveFamily>* const rows[] = {&portable};
  return rows;
}

}  // namespace tilewise::cuda
