// Tile products in Highway, compiled once per instruction set.
//
// Both products are blocked the same way: a block of R x NV vectors of sums stays in registers, the operand
// that is read as whole vectors (packed Q, V) lies in a panel that fits L1, the other one is broadcast
// element by element.
//
//                scores                         accumulate, accumulate_keys
//   registers    R keys x NV vectors of rows    R rows (keys) x NV vectors of V (of dO)
//   panel in L1  Q: kDepth x NV vectors, fp32   V (dO): 128 keys (rows) x NV vectors, fp32
//   broadcast    K: R keys x kDepth, as fp32    P^T [key][row]: R neighbouring rows of each key (keys of each
//                                               row)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile/simd.cpp"
#include "cpu/targets.h"
// Second, before any other header of Highway:
#include <hwy/foreach_target.h>
// Then the rest.
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/tile/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int64_t kPanel = 2 * kLanes;
// 16 registers hold 6 x 2 sums, two panel vectors and a broadcast; 32 hold 8 x 2 with room to overlap.
constexpr int kBlockRows = HWY_TARGET == HWY_AVX3 ? 8 : 6;
// Columns of K and Q that a block works on before it stores its sums: the Q panel then takes at most 24 KiB.
constexpr int64_t kDepth = 192;
static_assert(kRowPad % kLanes == 0);

HWY_INLINE V load_as_f32(D d, const float* p) { return hn::LoadU(d, p); }

HWY_INLINE V load_as_f32(D d, const BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, &p->bits));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

size_t packed_q_bytes(int64_t m, int64_t d) {
  return static_cast<size_t>(padded_rows(m) * d) * sizeof(float);
}

HWY_INLINE float as_f32(float x) { return x; }
HWY_INLINE float as_f32(BF16 x) { return bf16_bits_to_f32(x.bits); }

// Panels of kPanel rows (the last one may be a single vector wide), each [d][width].
template <class T>
void pack_q(const T* q, int64_t m, int64_t d, void* packed) {
  const int64_t rows = padded_rows(m);
  for (int64_t r0 = 0; r0 < rows; r0 += kPanel) {
    const int64_t width = HWY_MIN(kPanel, rows - r0);
    const int64_t real = HWY_MIN(width, m - r0);
    float* panel = static_cast<float*>(packed) + r0 * d;
    if (real < width) std::fill_n(panel, width * d, 0.0f);
    // A few columns of all rows at a time: what is written stays in L1 until it is whole.
    constexpr int64_t kColumns = 16;
    for (int64_t c0 = 0; c0 < d; c0 += kColumns) {
      for (int64_t r = 0; r < real; ++r) {
        for (int64_t c = c0; c < c0 + kColumns; ++c) panel[c * width + r] = as_f32(q[(r0 + r) * d + c]);
      }
    }
  }
}

// sums[R][NV] (+)= broadcast(a[r * lda + i * a_step]) * panel[i], for `steps` values of i.
template <int R, int NV, bool kFromMemory>
HWY_INLINE void multiply_block(const float* a, int64_t lda, int64_t a_step, const float* panel, int64_t steps,
                               const float* rescale, float* sums, int64_t ld_sums) {
  const D d;
  V acc[R][NV];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < NV; ++v) {
      if constexpr (kFromMemory) {
        acc[r][v] = hn::LoadU(d, sums + r * ld_sums + v * kLanes);
        if (rescale != nullptr) acc[r][v] = hn::Mul(acc[r][v], hn::Set(d, rescale[r]));
      } else {
        acc[r][v] = hn::Zero(d);
      }
    }
  }
  for (int64_t i = 0; i < steps; ++i) {
    V b[NV];
    for (int v = 0; v < NV; ++v) b[v] = hn::Load(d, panel + (i * NV + v) * kLanes);
    for (int r = 0; r < R; ++r) {
      const V broadcast = hn::Set(d, a[r * lda + i * a_step]);
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(broadcast, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, sums + r * ld_sums + v * kLanes);
  }
}

// The same for a row count known only at run time, at most kBlockRows.
template <int NV, bool kFromMemory, int R = kBlockRows>
HWY_INLINE void multiply_rows(int64_t rows, const float* a, int64_t lda, int64_t a_step, const float* panel,
                              int64_t steps, const float* rescale, float* sums, int64_t ld_sums) {
  if (rows == R) {
    multiply_block<R, NV, kFromMemory>(a, lda, a_step, panel, steps, rescale, sums, ld_sums);
  } else if constexpr (R > 1) {
    multiply_rows<NV, kFromMemory, R - 1>(rows, a, lda, a_step, panel, steps, rescale, sums, ld_sums);
  }
}

// K rows of a block as fp32; fp32 tiles are read where they lie.
struct KeyBlock {
  const float* rows;
  int64_t ld;
};

HWY_INLINE KeyBlock key_block(const KvTile<float>& k, int64_t key, int64_t, int64_t c0, int64_t, float*) {
  return {k.rows + key * k.ld + c0, k.ld};
}

HWY_INLINE KeyBlock key_block(const KvTile<BF16>& k, int64_t key, int64_t count, int64_t c0, int64_t depth,
                              float* buffer) {
  const D d;
  for (int64_t r = 0; r < count; ++r) {
    const BF16* from = k.rows + (key + r) * k.ld + c0;
    for (int64_t c = 0; c < depth; c += kLanes)
      hn::Store(load_as_f32(d, from + c), d, buffer + r * kDepth + c);
  }
  return {buffer, kDepth};
}

template <int NV, class T>
void score_panel(const KvTile<T>& k, int64_t d, const float* panel, float* s, int64_t ld_s) {
  HWY_ALIGN float buffer[kBlockRows * kDepth];
  for (int64_t c0 = 0; c0 < d; c0 += kDepth) {
    const int64_t depth = HWY_MIN(kDepth, d - c0);
    const float* q = panel + c0 * NV * kLanes;
    for (int64_t key = 0; key < k.count; key += kBlockRows) {
      const int64_t rows = HWY_MIN(static_cast<int64_t>(kBlockRows), k.count - key);
      const KeyBlock block = key_block(k, key, rows, c0, depth, buffer);
      float* sums = s + key * ld_s;
      if (c0 == 0) {
        multiply_rows<NV, false>(rows, block.rows, block.ld, 1, q, depth, nullptr, sums, ld_s);
      } else {
        multiply_rows<NV, true>(rows, block.rows, block.ld, 1, q, depth, nullptr, sums, ld_s);
      }
    }
  }
}

template <class T>
void scores(const KvTile<T>& k, int64_t d, const void* packed_q, int64_t m, float* s) {
  const int64_t rows = padded_rows(m);
  for (int64_t r0 = 0; r0 < rows; r0 += kPanel) {
    const float* panel = static_cast<const float*>(packed_q) + r0 * d;
    if (rows - r0 >= kPanel) {
      score_panel<2>(k, d, panel, s + r0, rows);
    } else {
      score_panel<1>(k, d, panel, s + r0, rows);
    }
  }
}

// The left operand of a sum over the rows of a tile: element (row of the result r, row of the tile i) is at
// at[r * row_step + i * step].
struct Weights {
  const float* at;
  int64_t row_step;
  int64_t step;
};

// sums[m][d] = (rescale == nullptr ? 0 : sums * rescale) + weights * v; `keep` leaves the sums as they are.
template <class T>
HWY_INLINE void accumulate_tile(const Weights& weights, const KvTile<T>& v, int64_t m, int64_t d_v, bool keep,
                                const float* rescale, float* o, int64_t ld_o) {
  const D d;
  // The tile's rows are taken in pieces so that the panel stays in L1 whatever the tile's length is.
  constexpr int64_t kPiece = 128;
  HWY_ALIGN float panel[kPiece * kPanel];
  for (int64_t first = 0; first < v.count; first += kPiece) {
    const int64_t count = HWY_MIN(kPiece, v.count - first);
    for (int64_t c0 = 0; c0 < d_v; c0 += kPanel) {
      for (int64_t i = 0; i < count; ++i) {
        const T* from = v.rows + (first + i) * v.ld + c0;
        hn::Store(load_as_f32(d, from), d, panel + i * kPanel);
        hn::Store(load_as_f32(d, from + kLanes), d, panel + i * kPanel + kLanes);
      }
      for (int64_t r = 0; r < m; r += kBlockRows) {
        const int64_t rows = HWY_MIN(static_cast<int64_t>(kBlockRows), m - r);
        float* sums = o + r * ld_o + c0;
        const float* a = weights.at + r * weights.row_step + first * weights.step;
        if (first == 0 && rescale == nullptr && !keep) {
          multiply_rows<2, false>(rows, a, weights.row_step, weights.step, panel, count, nullptr, sums, ld_o);
        } else {
          const float* factors = first == 0 && rescale != nullptr ? rescale + r : nullptr;
          multiply_rows<2, true>(rows, a, weights.row_step, weights.step, panel, count, factors, sums, ld_o);
        }
      }
    }
  }
}

template <class T>
void accumulate(const void* p, const KvTile<T>& v, int64_t m, int64_t d_v, const float* rescale, float* o,
                int64_t ld_o) {
  accumulate_tile(Weights{static_cast<const float*>(p), 1, padded_rows(m)}, v, m, d_v, false, rescale, o,
                  ld_o);
}

template <class T>
void accumulate_keys(std::span<const WeightedRows<T>> terms, int64_t keys, int64_t d, bool first, float* dv,
                     int64_t ld_dv) {
  for (const WeightedRows<T>& term : terms) {
    const Weights weights{static_cast<const float*>(term.weights), padded_rows(term.rows.count), 1};
    accumulate_tile(weights, term.rows, keys, d, !first, nullptr, dv, ld_dv);
    first = false;
  }
}

void nothing() {}

const TileOps kTileOps = {.packed_q_bytes = packed_q_bytes,
                          .pack_q = pack_q<float>,
                          .pack_q_bf16 = pack_q<BF16>,
                          .scores = scores<BF16>,
                          .scores_f32 = scores<float>,
                          .packed_v_bytes = nullptr,
                          .pack_v = nullptr,
                          .accumulate = accumulate<BF16>,
                          .accumulate_f32 = accumulate<float>,
                          .accumulate_keys = accumulate_keys<BF16>,
                          .accumulate_keys_f32 = accumulate_keys<float>,
                          .enter = nothing,
                          .leave = nothing};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cpu {

const TargetTables<TileOps>& simd_tile_ops() {
  static const TargetTables<TileOps> tables = TW_TARGET_TABLES(kTileOps);
  return tables;
}

}  // namespace tilewise::cpu
#endif
