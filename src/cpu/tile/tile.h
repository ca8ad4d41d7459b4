// The contract of tile products: bf16 (or fp32) K/V tiles against packed query rows, fp32 sums.
//
//   scores      S^T[key][row]  = sum_c K[key][c] * Q[row][c]
//   accumulate  O[row][c]      = O[row][c] * rescale[row] + sum_key P^T[key][row] * V[key][c]
//
// Rows of a query tile lie next to each other in S^T and P^T, so that the softmax works on whole vectors of
// rows and no product needs a transposition. Sums run over c (scores) and key (accumulate) in ascending
// order, one fused multiply-add a step where the machine has it: a row's bits depend on nothing but its own
// operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/numeric.h"

namespace tilewise::cpu {

/// Query rows are padded to a multiple of this; so are the leading dimensions of S^T and P^T.
inline constexpr int64_t kRowPad = 16;
constexpr int64_t padded_rows(int64_t m) { return (m + kRowPad - 1) / kRowPad * kRowPad; }

/// Keys decoded into one tile, [count][ld] row-major. T is BF16, or float where bf16 could not hold the
/// values.
template <class T>
struct KvTile {
  const T* rows = nullptr;
  int64_t ld = 0;
  int64_t count = 0;
};

/// Function table of one instruction set. Every pointer is 64-byte aligned; d and d_v are multiples of 32.
struct TileOps {
  /// Bytes that pack_q fills for m rows of d columns.
  size_t (*packed_q_bytes)(int64_t m, int64_t d);
  /// q [m][d] fp32 -> the form that scores reads; rows m..padded_rows(m) become zero.
  void (*pack_q)(const float* q, int64_t m, int64_t d, void* packed);
  /// s [k.count][padded_rows(m)]
  void (*scores)(const KvTile<BF16>& k, int64_t d, const void* packed_q, int64_t m, float* s);
  void (*scores_f32)(const KvTile<float>& k, int64_t d, const void* packed_q, int64_t m, float* s);
  /// p [v.count][padded_rows(m)], rescale [m], o [m][d_v]
  void (*accumulate)(const float* p, const KvTile<BF16>& v, int64_t m, int64_t d_v, const float* rescale,
                     float* o);
  void (*accumulate_f32)(const float* p, const KvTile<float>& v, int64_t m, int64_t d_v, const float* rescale,
                         float* o);
};

}  // namespace tilewise::cpu
