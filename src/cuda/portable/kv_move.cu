// KV rows into cache records and back. The bytes are those of formats/codec.h.
//
// A lane holds a piece of a row: eight columns, 16 bytes of bf16. A warp takes a strip of 32 pieces; the
// block's warps take the strips of its rows in turn, and the next strip is on its way while one is written.
// Columns that share a scale are in neighbouring lanes of one warp: shuffles find their largest magnitude,
// each lane computes the scale, the first one stores it. Pieces are stored at once, 16 (bf16), 8 (e4m3) or 4
// bytes (e2m1).
#include <cuda_fp8.h>

#include <algorithm>
#include <string>

#include "cuda/common/launch.h"
#include "cuda/common/ptx.cuh"
#include "cuda/kernels.h"
#include "cuda/portable/decode.cuh"
#include "cuda/portable/encode.h"
#include "formats/codec.h"

namespace tilewise::cuda {
namespace {

using formats::Element;
using formats::RecordSpec;
using formats::ScaleType;
using formats::Segment;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kPiece = 8;  // columns

// Rows of a block: few where rows are few, so that many multiprocessors work; many where they are many, as
// each block of append_kernel reads all slots behind its own.
constexpr int kFewestRows = 4;
constexpr int kMostRows = 128;
constexpr int kBlocks = 256;  // wanted

struct KvMoveParams {
  uint16_t* x;
  int64_t x_stride;
  int64_t n;
  uint8_t* pages;
  int64_t block_stride;
  int64_t page;
  int64_t slots;  // in all pages
  int32_t rows_of_block;
  const void* slot_of_row;
  int64_t slot_stride;
  bool wide_slots;  // int64
};

// Whether all rows of pages, which begin at 16 bytes, do so too.
constexpr bool is_aligned(const RecordSpec& spec) {
  for (int k = 0; k < spec.num_segments; ++k) {
    if (spec.segments[k].offset % 16 != 0) return false;
    for (int p = 0; p <= spec.segments[k].plane; ++p) {
      if (spec.plane_bytes[p] % 16 != 0) return false;
    }
  }
  return true;
}

template <Record kRecord, int32_t kDim>
struct Layout {
  static constexpr int kStrips = (kDim + 32 * kPiece - 1) / (32 * kPiece);

  TW_HD static constexpr RecordSpec spec() { return formats::record_spec(kRecord, kDim); }
  // Columns whose groups have scales: the first ones.
  TW_HD static constexpr int grouped_columns() {
    const RecordSpec it = spec();
    int columns = 0;
    for (int k = 0; k < it.num_segments; ++k) {
      const Segment& segment = it.segments[k];
      if (segment.scaled || segment.through_groups) columns += segment.columns;
    }
    return columns;
  }
  static_assert(is_aligned(spec()));
};

// Where a record lies; no page: nowhere.
struct Place {
  uint8_t* page;
  int64_t offset;  // tokens
};

__device__ Place place_of(const KvMoveParams& p, int64_t slot) {
  return {p.pages + slot / p.page * p.block_stride, slot % p.page};
}

template <class L, int kPlane>
__device__ __forceinline__ uint8_t* row_at(const Place& place, int64_t page) {
  constexpr RecordSpec kSpec = L::spec();
  return formats::plane_row(place.page, page, kSpec, kPlane, place.offset);
}

// Encoding ---------------------------------------------------------------------------------------------

// The scale of this lane's group as it is stored; by all lanes of a warp.
__device__ __forceinline__ uint32_t stored_scale(const formats::Scales& scales, const uint4& x) {
  const uint32_t pairs = __vmaxu2(__vmaxu2(x.x & kMagnitudes, x.y & kMagnitudes),
                                  __vmaxu2(x.z & kMagnitudes, x.w & kMagnitudes));
  uint32_t largest = max(pairs & 0xFFFFu, pairs >> 16);
#pragma unroll
  for (int step = 1; step < scales.group / kPiece; step *= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  const float amax = bf16_bits_to_f32(static_cast<uint16_t>(largest));
  return f32_is_finite(amax) ? formats::quantised_scale(scales, amax) : formats::nan_scale(scales.type);
}

__device__ __forceinline__ float first_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float second_of(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// The hardware's conversion gives f32_to_e4m3's bits. PTX does not say what becomes of the sign of a NaN: no
// caller has one.
__device__ __forceinline__ uint2 encode_e4m3(const uint4& x, float inverse) {
  const auto two = [&](uint32_t pair) {
    return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(
        {first_of(pair) * inverse, second_of(pair) * inverse}, __NV_SATFINITE, __NV_E4M3));
  };
  return {two(x.x) | two(x.y) << 16, two(x.z) | two(x.w) << 16};
}

__device__ __forceinline__ uint32_t encode_e2m1(const uint4& x, float scale) {
  const float factor = e2m1_factor(scale);
  const auto two = [&](uint32_t pair) {
    const uint32_t scaled = pack<__half>(fabsf(first_of(pair)) * factor, fabsf(second_of(pair)) * factor);
    const __half top = __ushort_as_half(kE2m1Top);
    const __half2 limited = __hmin2(reinterpret_cast<const __half2&>(scaled), __half2(top, top));
    return e2m1_codes(pair, reinterpret_cast<const uint32_t&>(limited));
  };
  return two(x.x) | two(x.y) << 8 | two(x.z) << 16 | two(x.w) << 24;
}

template <class Change>
__device__ __forceinline__ uint4 changed(const uint4& x, const Change& change) {
  return {change(x.x), change(x.y), change(x.z), change(x.w)};
}

// Each NaN becomes numeric.h's.
__device__ __forceinline__ uint4 with_one_nan(const uint4& x) {
  const auto one = [](uint32_t bits) { return (bits & 0x7FFFu) > 0x7F80u ? uint32_t{kBf16Nan} : bits; };
  return changed(x, [&](uint32_t pair) { return one(pair & 0xFFFFu) | one(pair >> 16) << 16; });
}

// A piece of a segment; `stored` is its group's scale, where it has one.
template <class L, int kSegment>
__device__ __forceinline__ void encode_piece_of(uint8_t* row, int column, uint4 x, uint32_t stored) {
  constexpr RecordSpec kSpec = L::spec();
  constexpr Segment kIt = kSpec.segments[kSegment];
  if constexpr (kIt.element == Element::kBf16 && !kIt.through_groups) {
    *reinterpret_cast<uint4*>(row + 2 * column) = x;
  } else if constexpr (kIt.element == Element::kE4m3 && !kIt.scaled) {
    *reinterpret_cast<uint2*>(row + column) = encode_e4m3(with_one_nan(x), 1.0f);
  } else {
    constexpr ScaleType kType = kSpec.scales.type;
    const bool is_nan = stored == formats::nan_scale(kType);
    const float scale = is_nan ? 1.0f : formats::scale_value(kType, stored);
    if (is_nan) x = changed(x, smallest_of_sign);
    if constexpr (kIt.element == Element::kE4m3) {
      static_assert(kSpec.scales.rule == formats::ScaleRule::kPow2);
      *reinterpret_cast<uint2*>(row + column) = encode_e4m3(x, inverse_of_pow2(scale));
    } else if constexpr (kIt.element == Element::kE2m1) {
      *reinterpret_cast<uint32_t*>(row + column / 2) = encode_e2m1(x, scale);
    } else {
      static_assert(kSpec.segments[0].element == Element::kE2m1);
      const uint4 values = decode_e2m1(encode_e2m1(x, scale), formats::scale_value(kType, stored));
      *reinterpret_cast<uint4*>(row + 2 * column) = with_one_nan(values);
    }
  }
}

// What a token has beside its columns: its groups' scales, by the first lane of each, and the padding.
template <class L>
__device__ __forceinline__ void store_scale(const Place& place, int64_t page, int column, uint32_t stored) {
  constexpr RecordSpec kSpec = L::spec();
  if (column >= kSpec.segments[0].columns || column % kSpec.scales.group != 0) return;
  uint8_t* row = row_at<L, kSpec.scales.plane>(place, page);
  uint8_t* to = row + formats::scale_offset(kSpec.scales, column / kSpec.scales.group);
  if constexpr (kSpec.scales.type == ScaleType::kFp32) {
    *reinterpret_cast<uint32_t*>(to) = stored;
  } else {
    *to = static_cast<uint8_t>(stored);
  }
  uint8_t* end =
      row + kSpec.scales.offset + formats::num_scales(kSpec) * formats::scale_bytes(kSpec.scales.type);
#pragma unroll
  for (int i = 0; i < kSpec.scales.padding; ++i) {
    if (column == 0) end[i] = 0;
  }
}

template <class L, int kSegment>
__device__ __forceinline__ void encode_segment(const Place& place, int64_t page, int column, const uint4& x,
                                               uint32_t stored) {
  constexpr RecordSpec kSpec = L::spec();
  constexpr Segment kIt = kSpec.segments[kSegment];
  if (column < kIt.first || column >= kIt.first + kIt.columns) return;
  uint8_t* row = row_at<L, kIt.plane>(place, page) + kIt.offset;
  encode_piece_of<L, kSegment>(row, column - kIt.first, x, stored);
}

// A piece of a row, or what is behind them; by all lanes of a warp.
template <class L>
__device__ __forceinline__ void encode_piece(const Place& place, int64_t page, int strip, int lane,
                                             const uint4& x) {
  constexpr RecordSpec kSpec = L::spec();
  const int column = kPiece * (32 * strip + lane);
  uint32_t stored = 0;
  if constexpr (L::grouped_columns() > 0) {
    if (32 * kPiece * strip < L::grouped_columns()) stored = stored_scale(kSpec.scales, x);
    store_scale<L>(place, page, column, stored);
  }
  encode_segment<L, 0>(place, page, column, x, stored);
  if constexpr (kSpec.num_segments > 1) encode_segment<L, 1>(place, page, column, x, stored);
}

// A piece of the block's `index`-th strip. Rows behind the last one are zeros.
template <class L>
__device__ __forceinline__ uint4 load_piece(const KvMoveParams& p, int index) {
  const int64_t row = int64_t{blockIdx.x} * p.rows_of_block + index / L::kStrips;
  const int column = kPiece * (32 * (index % L::kStrips) + threadIdx.x % 32);
  if (index >= p.rows_of_block * L::kStrips || row >= p.n || column >= L::spec().d) return {};
  return *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + column);
}

// Encodes the block's rows; `find` fills the list of their places, for all threads to see.
template <class L, class Find>
__device__ __forceinline__ void encode_rows(const KvMoveParams& p, const Find& find) {
  __shared__ Place places[kMostRows];
  int strip = threadIdx.x / 32;
  uint4 x = load_piece<L>(p, strip);
  find(places);
#pragma unroll 1
  for (; strip < p.rows_of_block * L::kStrips; strip += kWarps) {
    const uint4 next = load_piece<L>(p, strip + kWarps);
    const Place& place = places[strip / L::kStrips];
    if (place.page != nullptr) encode_piece<L>(place, p.page, strip % L::kStrips, threadIdx.x % 32, x);
    x = next;
  }
}

// Row i of the block and slot i are one.
__device__ void find_same(const KvMoveParams& p, Place* places) {
  const int64_t slot = int64_t{blockIdx.x} * p.rows_of_block + threadIdx.x;
  if (threadIdx.x < p.rows_of_block) places[threadIdx.x] = slot < p.slots ? place_of(p, slot) : Place{};
  __syncthreads();
}

// Slots behind the last row get what a row of zeros gives.
template <class L>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const __grid_constant__ KvMoveParams p) {
  encode_rows<L>(p, [&](Place* places) { find_same(p, places); });
}

// Appending --------------------------------------------------------------------------------------------

__device__ int64_t slot_at(const KvMoveParams& p, int64_t row) {
  return p.wide_slots ? static_cast<const int64_t*>(p.slot_of_row)[row * p.slot_stride]
                      : static_cast<const int32_t*>(p.slot_of_row)[row * p.slot_stride];
}

// Of equal slots the last row wins: a block drops those of its rows that a later one writes over. The later
// ones of the block itself are compared one by one; those behind it are looked up among its rows by a hash.
class AppendedRows {
 public:
  __device__ void find(const KvMoveParams& p, Place* places) {
    const int64_t first = int64_t{blockIdx.x} * p.rows_of_block;
    const int i = threadIdx.x;
    const bool is_row = i < p.rows_of_block;
    if (is_row) slots_[i] = first + i < p.n ? slot_at(p, first + i) : -1;
    for (int head = i; head < kHeads; head += kThreads) heads_[head] = kNone;
    __syncthreads();
    if (is_row) add(p, i, places);
    __syncthreads();
    drop_overwritten(p, first + p.rows_of_block, places);
    __syncthreads();
  }

 private:
  static constexpr int kHeadBits = 9;
  static constexpr int kHeads = 1 << kHeadBits;
  static constexpr int kNone = -1;
  static constexpr int kAtOnce = 8;  // slots that a thread reads before it looks them up

  __device__ static uint32_t hash(int64_t slot) {
    return static_cast<uint32_t>(slot) * 0x9E3779B1u >> (32 - kHeadBits);
  }

  __device__ void add(const KvMoveParams& p, int i, Place* places) {
    const int64_t slot = slots_[i];
    bool is_last = slot >= 0 && slot < p.slots;
    for (int later = i + 1; later < p.rows_of_block; ++later) is_last = is_last && slots_[later] != slot;
    places[i] = is_last ? place_of(p, slot) : Place{};
    if (is_last) next_[i] = atomicExch(&heads_[hash(slot)], i);
  }

  __device__ void drop_overwritten(const KvMoveParams& p, int64_t behind, Place* places) const {
    for (int64_t row = behind + threadIdx.x; row < p.n; row += kAtOnce * kThreads) {
      int64_t later[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        later[k] = row + k * kThreads < p.n ? slot_at(p, row + k * kThreads) : -1;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        for (int i = heads_[hash(later[k])]; i != kNone; i = next_[i]) {
          if (slots_[i] == later[k]) places[i].page = nullptr;
        }
      }
    }
  }

  int64_t slots_[kMostRows];
  int heads_[kHeads];    // the last row that was added with a hash
  int next_[kMostRows];  // and the one before it
};

template <class L>
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ KvMoveParams p) {
  __shared__ AppendedRows rows;
  encode_rows<L>(p, [&](Place* places) { rows.find(p, places); });
}

// Decoding ---------------------------------------------------------------------------------------------

template <class L, int kSegment>
__device__ __forceinline__ uint4 decode_segment(const Place& place, int64_t page, int column) {
  constexpr RecordSpec kSpec = L::spec();
  constexpr Segment kIt = kSpec.segments[kSegment];
  const uint8_t* row = row_at<L, kIt.plane>(place, page) + kIt.offset;
  if constexpr (kIt.element == Element::kBf16) {
    return *reinterpret_cast<const uint4*>(row + 2 * column);
  } else {
    float scale = 1.0f;
    if constexpr (kIt.scaled) {
      const uint8_t* scales = row_at<L, kSpec.scales.plane>(place, page);
      scale = cuda::stored_scale<kSpec.scales.type>(
          scales + formats::scale_offset(kSpec.scales, column / kSpec.scales.group));
    }
    if constexpr (kIt.element == Element::kE4m3) {
      return with_one_nan(decode_e4m3(*reinterpret_cast<const uint2*>(row + column), scale));
    } else {
      return with_one_nan(decode_e2m1(*reinterpret_cast<const uint32_t*>(row + column / 2), scale));
    }
  }
}

// The piece of a row that begins at a column.
template <class L>
__device__ __forceinline__ uint4 decode_piece(const Place& place, int64_t page, int column) {
  constexpr RecordSpec kSpec = L::spec();
  if constexpr (kSpec.num_segments > 1) {
    constexpr int kFirst = kSpec.segments[1].first;
    if (column >= kFirst) return decode_segment<L, 1>(place, page, column - kFirst);
  }
  return decode_segment<L, 0>(place, page, column);
}

template <class L>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const __grid_constant__ KvMoveParams p) {
  __shared__ Place places[kMostRows];
  find_same(p, places);
  const int64_t first = int64_t{blockIdx.x} * p.rows_of_block;
  for (int strip = threadIdx.x / 32; strip < p.rows_of_block * L::kStrips; strip += kWarps) {
    const int row = strip / L::kStrips;
    const int column = kPiece * (32 * (strip % L::kStrips) + threadIdx.x % 32);
    if (places[row].page == nullptr || column >= L::spec().d) continue;
    *reinterpret_cast<uint4*>(p.x + (first + row) * p.x_stride + column) =
        decode_piece<L>(places[row], p.page, column);
  }
}

// Kernels ----------------------------------------------------------------------------------------------

using MoveKernel = void (*)(KvMoveParams);

template <class L>
MoveKernel kernel_of(KvMove move) {
  switch (move) {
    case KvMove::kQuantize:
      return &quantize_kernel<L>;
    case KvMove::kDequantize:
      return &dequantize_kernel<L>;
    case KvMove::kAppend:
      break;
  }
  return &append_kernel<L>;
}

// kDim 0: a record of rows of any head size.
template <Record kRecord, int32_t kDim>
MoveKernel kernel_of(const KvMoveShape& shape) {
  if constexpr (kDim != 0) {
    return kernel_of<Layout<kRecord, kDim>>(shape.move);
  } else {
    return shape.d == 576 ? kernel_of<Layout<kRecord, 576>>(shape.move)
                          : kernel_of<Layout<kRecord, 512>>(shape.move);
  }
}

MoveKernel kernel_of(const KvMoveShape& shape) {
  switch (shape.record) {
#define TW_RECORD(name, enumerator, dim, ...) \
  case Record::enumerator:                    \
    return kernel_of<Record::enumerator, dim>(shape);
#include "formats/records.def"
#undef TW_RECORD
    case Record::kAuto:
      break;
  }
  return nullptr;
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
    const int64_t slots = shape.num_blocks * shape.page;
    const int64_t rows = shape.move == KvMove::kAppend ? shape.n : slots;
    const int64_t rows_of_block = std::clamp<int64_t>((rows + kBlocks - 1) / kBlocks, kFewestRows, kMostRows);
    const KvMoveParams params{.x = problem.x,
                              .x_stride = problem.x_stride,
                              .n = shape.n,
                              .pages = problem.pages,
                              .block_stride = problem.block_stride,
                              .page = shape.page,
                              .slots = slots,
                              .rows_of_block = static_cast<int32_t>(rows_of_block),
                              .slot_of_row = problem.slots,
                              .slot_stride = problem.slot_stride,
                              .wide_slots = shape.slot_dtype == DType::kInt64};
    launch({.op = shape.op.c_str(),
            .name = name().c_str(),
            .blocks = (rows + rows_of_block - 1) / rows_of_block,
            .threads = kThreads,
            .stream = static_cast<cudaStream_t>(place.stream.handle)},
           kernel_of(shape), params);
  }
};

}  // namespace

KernelTable<KvMoveFamily> kv_move_kernels() {
  static const PortableKvMove portable;
  static const Kernel<KvMoveFamily>* const rows[] = {&portable};
  return rows;
}

}  // namespace tilewise::cuda
