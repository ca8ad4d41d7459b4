// KV sources: the rows of the next tile, on their way to shared memory. The index check lives here and
// nowhere else in the forward kernel.
//
// Eight lanes copy a row, 16 bytes each at a time; row r + i * kThreads / 8 of the tile belongs to the lanes
// 8 * r .. 8 * r + 7 of the block. Plain rows go straight to their place in the tile. Records go to the raw
// tile first, and the same lanes decode them once they have arrived.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/decode.cuh"
#include "cuda/portable/key_tiles.cuh"
#include "cuda/portable/params.h"

namespace tilewise::cuda {

// Byte offset of 16-byte piece `piece` of a row in a swizzled tile: rows that follow one another have the
// same piece in different banks.
template <int kRowBytes>
__device__ __forceinline__ uint32_t swizzled(int row, int piece) {
  if constexpr (kRowBytes % 128 == 0) {
    return row * kRowBytes + ((piece ^ (row & 7)) << 4);
  } else {
    static_assert(kRowBytes == 64);
    return row * kRowBytes + ((piece ^ ((row >> 1) & 3)) << 4);
  }
}

template <int kDim, int kTileKeys, int kThreads, bool kRaw>
class KeySource {
 public:
  static constexpr int kRowsAtOnce = kThreads / 8;
  static constexpr int kRows = kTileKeys / kRowsAtOnce;  // of a thread

  __device__ KeySource(const ForwardParams& params, const KeyTiles& tiles) : p_(params), tiles_(tiles) {}

  // Reads the list or table entries of the tile at `place`, to be used by the next fetch.
  __device__ void look_up(int32_t place) {
    next_ = tiles_.at(p_.shape.dense, place);
    const int32_t* index = next_.extra ? tiles_.extra_index : tiles_.main_index;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int32_t at = next_.begin + row(i);
      entry_[i] = -1;
      if (at >= next_.end) continue;
      if (!p_.shape.dense) {
        entry_[i] = index[at];
      } else if (at >= tiles_.needed.begin) {
        entry_[i] = index[p_.main_page.quotient(static_cast<uint32_t>(at))];
      }
    }
  }

  // Starts the copies of the tile that was looked up: to `to` (a shared address), and what is a key to
  // valid [kTileKeys].
  __device__ void fetch(uint32_t to, uint8_t* valid) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const Token token = next_.extra ? find(p_.tensors.extra, p_.extra_page, p_.extra_slots, i)
                                      : find(p_.tensors.main, p_.main_page, p_.main_slots, i);
      const bool found = token.page != nullptr;
      if (lane() == 0) valid[row(i)] = found ? 1 : 0;
      // Without a read any address will do; a cache without rows may have none.
      const auto* page = found ? token.page : static_cast<const uint8_t*>(p_.tensors.q);
      if constexpr (kRaw) {
        copy_record(to + row(i) * p_.raw_row_bytes, page, token.offset, found);
      } else {
        copy_row(to, row(i), page, found);
      }
    }
    fetched_extra_ = next_.extra;
  }

  // Decodes the raw tile that has arrived. Only lanes that copied a row decode it.
  __device__ void decode(const uint8_t* raw, uint8_t* to) const {
    decode_rows<kRows>(fetched_extra_ ? p_.extra_raw : p_.main_raw, raw + row(0) * p_.raw_row_bytes,
                       kRowsAtOnce * p_.raw_row_bytes, lane(), [&](int i, int piece, const uint4& columns) {
                         *reinterpret_cast<uint4*>(to + swizzled<kDim * 2>(row(i), piece)) = columns;
                       });
  }

 private:
  struct Token {
    const uint8_t* page = nullptr;  // of records: the page; otherwise the row. Null: there is none
    uint32_t offset = 0;            // in a page of records
  };

  __device__ static int lane() { return threadIdx.x % 8; }
  __device__ static int row(int i) { return threadIdx.x / 8 + i * kRowsAtOnce; }

  __device__ Token find(const CacheTensors& cache, const Divisor& page, int32_t slots, int i) const {
    const int32_t entry = entry_[i];
    if (entry < 0) return {};
    if (p_.shape.dense) {
      if (entry >= p_.shape.main.num_blocks) return {};
      const auto key = static_cast<uint32_t>(next_.begin + row(i));
      const uint32_t at = key - page.quotient(key) * page.by;
      return {cache.base + entry * cache.block_stride + at * cache.row_stride + tiles_.head_offset, 0};
    }
    if (entry >= slots) return {};
    const uint32_t block = page.quotient(static_cast<uint32_t>(entry));
    const uint32_t offset = static_cast<uint32_t>(entry) - block * page.by;
    const uint8_t* base = cache.base + block * cache.block_stride;
    if constexpr (kRaw) return {base, offset};
    return {base + offset * cache.row_stride, 0};
  }

  // Piece 8 * j + lane(), for every j: in the tile too they are 128 bytes apart.
  __device__ static void copy_row(uint32_t to, int row, const uint8_t* from, bool found) {
    const uint32_t first = to + swizzled<kDim * 2>(row, lane());
    const uint8_t* mine = from + 16 * lane();
#pragma unroll
    for (int j = 0; j < kDim / 64; ++j) copy_async_16(first + 128 * j, mine + 128 * j, found);
  }

  // A token's planes, one after another.
  __device__ void copy_record(uint32_t to, const uint8_t* page, uint32_t offset, bool found) const {
    const RawLayout& layout = next_.extra ? p_.extra_raw : p_.main_raw;
#pragma unroll 1
    for (int i = 0; i < layout.num_planes; ++i) {
      const RawPlane plane = layout.planes[i];
      const uint8_t* from = found ? page + plane.page_offset + int64_t{offset} * plane.bytes : page;
      const int step = found ? 1 : 0;  // without a read every piece comes from the same address
      int at = 16 * lane();
#pragma unroll 2
      for (; at + 16 <= plane.bytes; at += 128) copy_async_16(to + plane.to + at, from + step * at, found);
      if (at < plane.bytes) copy_async_8(to + plane.to + at, from + step * at, found);
    }
  }

  const ForwardParams& p_;
  const KeyTiles& tiles_;
  KeyTile next_;
  bool fetched_extra_ = false;
  int32_t entry_[kRows];
};

}  // namespace tilewise::cuda
