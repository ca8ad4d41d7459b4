// The contract of tile products: bf16 (or fp32) K/V tiles against packed query rows, fp32 sums.
//
//   scores           S^T[key][row]  = sum_c K[key][c] * Q[row][c]
//   accumulate       O[row][c]      = O[row][c] * rescale[row] + sum_key P[row][key] * V[key][c]
//   accumulate_keys  dV[key][c]     = dV[key][c] + sum_term sum_row P[row][key] * dO[row][c]
//
// Rows of a query tile lie next to each other in S^T, so that the softmax works on whole vectors of rows.
// Sums run over c (scores), key (accumulate) and row (accumulate_keys, term after term) in ascending order: a
// row's bits depend on nothing but its own operands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/ledger.h"
#include "core/numeric.h"

namespace tilewise::cpu {

/// Query rows are padded to a multiple of this; so is the leading dimension of S^T.
inline constexpr int64_t kRowPad = 16;
/// Most rows of a query tile.
inline constexpr int64_t kMaxTileRows = 128;
/// Most keys of a KV tile.
inline constexpr int64_t kMaxTileKeys = 256;
/// Where a tile is packed, it lies as [columns / 16][kMaxTileKeys / 32][32 keys of 16 columns].
inline constexpr int64_t kPackedKeys = 32;
inline constexpr int64_t kPackedColumns = 16;
inline constexpr int64_t kPackedBytes = kPackedKeys * kPackedColumns * 2;
constexpr int64_t padded_rows(int64_t m) { return (m + kRowPad - 1) / kRowPad * kRowPad; }

/// From a row of sums of d columns to the next one, in floats: not the power of two that head sizes often
/// are, so that neighbouring rows do not share their places in the caches.
constexpr int64_t row_step(int64_t d) { return d + 16; }

/// From a key of a gathered tile to the next one, in elements: a cache line more than d columns take. Sixteen
/// rows that lie 1,024 bytes apart would share four sets of L1.
template <class T>
constexpr int64_t key_step(int64_t d) {
  return d + 64 / static_cast<int64_t>(sizeof(T));
}

/// Keys decoded into one tile, [count][ld] row-major, in memory for a multiple of 16 keys. T is BF16, or
/// float where bf16 could not hold the values.
template <class T>
struct KvTile {
  const T* rows = nullptr;
  int64_t ld = 0;
  int64_t count = 0;
  const void* packed = nullptr;  // what pack_v made of it, if it did
};

/// A term of a gradient of keys: rows, and the weights by keys that elementwise/gradient.h of the same
/// instruction set left for them.
template <class T>
struct WeightedRows {
  const void* weights = nullptr;
  KvTile<T> rows;
};

/// Most terms of a sum. They have the same number of rows, at most kMaxTileRows.
inline constexpr int64_t kMaxTerms = 2;

/// Function table of one instruction set. Every pointer but q is 64-byte aligned; d and d_v are multiples of
/// 32, m is at most kMaxTileRows. What lies past a tile's keys and rows, up to the next multiple of 16, may
/// be read and written.
struct TileOps {
  /// Bytes that pack_q fills for m rows of d columns.
  size_t (*packed_q_bytes)(int64_t m, int64_t d);
  /// q [m][d] -> the form that scores reads; rows m..padded_rows(m) become zero.
  void (*pack_q)(const float* q, int64_t m, int64_t d, void* packed);
  void (*pack_q_bf16)(const BF16* q, int64_t m, int64_t d, void* packed);
  /// s [k.count][padded_rows(m)]. The functions for fp32 tiles are null where there are none.
  void (*scores)(const KvTile<BF16>& k, int64_t d, const void* packed_q, int64_t m, float* s);
  void (*scores_f32)(const KvTile<float>& k, int64_t d, const void* packed_q, int64_t m, float* s);
  /// A form of V that accumulate needs, where it needs one (and accumulate_keys, of its rows): it makes it on
  /// the way unless v.packed has it, which pays where the same V is multiplied several times. All terms of a
  /// sum are packed, or none. Null where V is read as it lies.
  /// The memory is that of kMaxTileKeys keys, however many there are.
  size_t (*packed_v_bytes)(int64_t d_v);
  void (*pack_v)(const KvTile<BF16>& v, int64_t d_v, void* packed);
  /// p: what the softmax of the same instruction set left there, rescale [m] (null: o is overwritten), o:
  /// rows of d_v floats, ld_o apart.
  void (*accumulate)(const void* p, const KvTile<BF16>& v, int64_t m, int64_t d_v, const float* rescale,
                     float* o, int64_t ld_o);
  void (*accumulate_f32)(const void* p, const KvTile<float>& v, int64_t m, int64_t d_v, const float* rescale,
                         float* o, int64_t ld_o);
  /// The same for gradients of keys. dv: at most kMaxTileKeys rows of d floats, one for each of `keys`. With
  /// `first` dv is overwritten.
  void (*accumulate_keys)(std::span<const WeightedRows<BF16>> terms, int64_t keys, int64_t d, bool first,
                          float* dv, int64_t ld_dv);
  void (*accumulate_keys_f32)(std::span<const WeightedRows<float>> terms, int64_t keys, int64_t d, bool first,
                              float* dv, int64_t ld_dv);
  /// Around the products of a thread: take and give back what the processor keeps for them.
  void (*enter)();
  void (*leave)();
};

/// The products for tiles of T, and Q of T.
template <class T>
struct ProductsOf {
  explicit ProductsOf(const TileOps& ops) {
    if constexpr (std::is_same_v<T, float>) {
      pack_q = ops.pack_q;
      scores = ops.scores_f32;
      accumulate = ops.accumulate_f32;
      accumulate_keys = ops.accumulate_keys_f32;
    } else {
      pack_q = ops.pack_q_bf16;
      pack_v = ops.pack_v;
      scores = ops.scores;
      accumulate = ops.accumulate;
      accumulate_keys = ops.accumulate_keys;
    }
  }

  void (*pack_q)(const T*, int64_t, int64_t, void*);
  void (*pack_v)(const KvTile<T>&, int64_t, void*) = nullptr;
  void (*scores)(const KvTile<T>&, int64_t, const void*, int64_t, float*);
  void (*accumulate)(const void*, const KvTile<T>&, int64_t, int64_t, const float*, float*, int64_t);
  void (*accumulate_keys)(std::span<const WeightedRows<T>>, int64_t, int64_t, bool, float*, int64_t);
};

/// Books `packed`, memory for what pack_v makes of a tile; null where it is not needed.
inline void lay_out_packed_v(const TileOps& ops, int64_t d_v, Layouter& layout, void*& packed) {
  packed = nullptr;
  if (ops.packed_v_bytes != nullptr) layout.bytes(packed, static_cast<int64_t>(ops.packed_v_bytes(d_v)));
}

/// The keys [skip, skip + count) of a tile; skip is a multiple of kPackedKeys. Packed, the keys behind them
/// meet weights of 0, up to a multiple of kPackedKeys.
template <class T>
KvTile<T> part_of(const KvTile<T>& tile, int64_t skip, int64_t count) {
  const auto* packed = static_cast<const std::byte*>(tile.packed);
  if (packed != nullptr) packed += skip / kPackedKeys * kPackedBytes;
  return {tile.rows + skip * tile.ld, tile.ld, count, packed};
}

/// The columns of a tile from a multiple of kPackedColumns on.
template <class T>
KvTile<T> columns_from(const KvTile<T>& tile, int64_t column) {
  const auto* packed = static_cast<const std::byte*>(tile.packed);
  if (packed != nullptr) packed += column / kPackedColumns * (kMaxTileKeys / kPackedKeys) * kPackedBytes;
  return {tile.rows + column, tile.ld, tile.count, packed};
}

/// The tile with its first d_v columns packed, for accumulates that follow.
template <class T>
KvTile<T> with_packed_v(const ProductsOf<T>& products, KvTile<T> tile, int64_t d_v, void* packed) {
  if (products.pack_v == nullptr) return tile;
  products.pack_v(tile, d_v, packed);
  tile.packed = packed;
  return tile;
}

/// A thread's time with the tile products.
class TileProducts {
 public:
  explicit TileProducts(const TileOps& ops) : ops_(ops) { ops_.enter(); }
  ~TileProducts() { ops_.leave(); }
  TileProducts(const TileProducts&) = delete;
  TileProducts& operator=(const TileProducts&) = delete;

 private:
  const TileOps& ops_;
};

}  // namespace tilewise::cpu
