// Tile products of bf16 operands, for every unit that multiplies registers of them. x86-64 only.
//
//   product      C (fp32)              A, one row a register row  B, pairs of rows interleaved  sums over
//   scores       S^T: 16 keys x rows   K as it lies: 32 columns   Q, packed once a query tile   d
//   accumulate   O: 16 rows x columns  P, from the softmax        V, packed for all rows        keys
//   accumulate_keys: as accumulate, with keys and rows in each other's place, over one or two terms
//
// B has in register row i and 32-bit column n the bf16 pair (b[2i][n], b[2i+1][n]).
//
// A unit has one function:
//
//   multiply<kContinue, kTerms>(product, meanwhile)
//
// It works block by block, a block being as many sums as it holds in registers, all columns of one row of
// blocks first. The sums that lie in memory are continued (kContinue) or overwritten. What lies past the last
// row, up to a register, may be read and written. `meanwhile(n)` is called at every step of every block,
// n = 0, 1, ... over the whole product. Subnormal numbers count as zero in both units.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "cpu/tile/bf16-inl.h"
#include "cpu/tile/tile.h"

namespace tilewise::cpu {

/// C = A * B. Strides are in bytes. A sum has parts of `steps` registers, one for each term, which begin
/// where `a` and `b` say. All but `pairs` pairs of a part's elements are zero.
struct Product {
  int64_t rows;
  int64_t columns;  // in registers of 16
  int64_t steps;
  int64_t pairs;
  std::array<const std::byte*, kMaxTerms> a;
  int64_t a_stride;  // between rows of a register
  int64_t a_next;    // to the next 16 rows
  int64_t a_step;    // along the sum
  std::array<const std::byte*, kMaxTerms> b;
  int64_t b_next;  // to the next 16 columns
  std::byte* c;
  int64_t c_stride;

  /// The sums of two registers of columns, for all rows or from one on that begins a unit's block.
  template <size_t kTerms>
  Product from(int64_t row, int64_t column) const {
    Product part = *this;
    part.rows -= row;
    part.columns = 2;
    for (size_t term = 0; term < kTerms; ++term) {
      part.a[term] += row / kRegisterRows * a_next + row % kRegisterRows * a_stride;
      part.b[term] += column * b_next;
    }
    part.c += row * c_stride + column * kRegisterRows * 4;
    return part;
  }
};

// ---- Q and scores -------------------------------------------------------------------------------

inline size_t packed_q_bytes(int64_t m, int64_t d) {
  return static_cast<size_t>(padded_rows(m) * d) * sizeof(BF16);
}

/// 32 columns of a row.
TW_BF16 inline __m512i load_pairs(const BF16* from) { return _mm512_loadu_si512(from); }
TW_BF16 inline __m512i load_pairs(const float* from) {
  return narrow(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16));
}

/// [rows / 16][d / 32] registers of B: register row i holds columns 2i and 2i + 1 of 16 query rows.
template <class T>
TW_BF16 void pack_q(const T* q, int64_t m, int64_t d, void* packed) {
  auto* out = static_cast<uint16_t*>(packed);
  for (int64_t r0 = 0; r0 < padded_rows(m); r0 += kRegisterRows) {
    for (int64_t c = 0; c < d; c += kRegisterDepth, out += kRegisterElements) {
      __m512i pairs[kRegisterRows];  // a query row's 16 pairs of columns
      for (int64_t r = 0; r < kRegisterRows; ++r) {
        const T* from = q + (r0 + r) * d + c;
        pairs[r] = r0 + r < m ? load_pairs(from) : _mm512_setzero_si512();
      }
      transpose(pairs);
      for (int64_t i = 0; i < kRegisterRows; ++i) _mm512_storeu_si512(out + i * kRegisterDepth, pairs[i]);
    }
  }
}

template <class Unit>
TW_BF16 void scores(const KvTile<BF16>& k, int64_t d, const void* packed_q, int64_t m, float* s) {
  Product x{};
  x.rows = k.count;
  x.columns = padded_rows(m) / kRegisterRows;
  x.steps = d / kRegisterDepth;
  x.pairs = d / 2;
  x.a[0] = reinterpret_cast<const std::byte*>(k.rows);
  x.a_stride = k.ld * 2;
  x.a_next = kRegisterRows * x.a_stride;
  x.a_step = kRegisterDepth * 2;
  x.b[0] = static_cast<const std::byte*>(packed_q);
  x.b_next = x.steps * kRegisterBytes;
  x.c = reinterpret_cast<std::byte*>(s);
  x.c_stride = padded_rows(m) * 4;
  Unit::template multiply<false, 1>(x, [](int64_t) {});
}

// ---- P, V and the output ------------------------------------------------------------------------

/// Most rows whose columns are packed at a time: two panels of 32 columns of them stay in L1.
constexpr int64_t kPanelRows = 256;
static_assert(kPanelRows >= kMaxTileKeys && kPanelRows >= kMaxTerms * kMaxTileRows);

using Terms = std::span<const WeightedRows<BF16>>;

/// Packs 32 columns of the terms' rows into two registers of B for every 32 rows. Rows past a term's last one
/// are zero. pack() depends on its argument alone: members that change would be read from memory again after
/// every tile instruction, which costs more than what it packs (notes.md).
template <size_t kTerms>
struct PanelPacker {
  /// Pairs of rows in a group.
  static constexpr int64_t kPairs = 4;

  std::array<KvTile<BF16>, kTerms> tiles;
  int64_t column;
  int64_t groups_of_term;
  uint16_t* left;  // [terms][registers_of(rows)]
  uint16_t* right;

  int64_t groups() const { return groups_of_term * static_cast<int64_t>(kTerms); }

  TW_BF16 [[gnu::always_inline]] void pack(int64_t group) const {
    const size_t term = kTerms == 1 || group < groups_of_term ? 0 : 1;
    const KvTile<BF16>& tile = tiles[term];
    const int64_t row = 2 * kPairs * (term == 0 ? group : group - groups_of_term);
    const int64_t ld = tile.ld;
    const BF16* from = tile.rows + row * ld + column;
    uint16_t* to = left + group * kPairs * kRegisterDepth;
    uint16_t* other = right + group * kPairs * kRegisterDepth;
    if (row + 2 * kPairs <= tile.count) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPairs; ++i) {
        const BF16* pair = from + 2 * i * ld;
        store(_mm512_loadu_si512(pair), _mm512_loadu_si512(pair + ld), to + i * kRegisterDepth,
              other + i * kRegisterDepth);
      }
      return;
    }
    const int64_t rows = tile.count - row;
    for (int64_t i = 0; i < kPairs; ++i) {
      const BF16* pair = from + 2 * i * ld;
      store(2 * i < rows ? _mm512_loadu_si512(pair) : _mm512_setzero_si512(),
            2 * i + 1 < rows ? _mm512_loadu_si512(pair + ld) : _mm512_setzero_si512(),
            to + i * kRegisterDepth, other + i * kRegisterDepth);
    }
  }

 private:
  /// Interleaves two rows of 32 columns: the first 16 columns, then the others.
  TW_BF16 static void store(__m512i even, __m512i odd, uint16_t* to, uint16_t* other) {
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
                                           7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_storeu_si512(other, _mm512_permutex2var_epi16(even, second, odd));
  }
};

TW_BF16 inline void rescale_rows(const float* rescale, int64_t m, int64_t d_v, float* o, int64_t ld_o) {
  for (int64_t r = 0; r < m; ++r) {
    if (rescale[r] == 1.0f) continue;
    const __m512 factor = _mm512_set1_ps(rescale[r]);
    float* row = o + r * ld_o;
    for (int64_t c = 0; c < d_v; c += 16) {
      _mm512_storeu_ps(row + c, _mm512_mul_ps(_mm512_loadu_ps(row + c), factor));
    }
  }
}

/// 16 columns after another, each with registers for all keys that a tile may have.
constexpr int64_t kPackedRegisters = registers_of(kMaxTileKeys);
static_assert(kPackedKeys == kRegisterDepth && kPackedColumns == kRegisterRows);
static_assert(kPackedBytes == kRegisterBytes);

inline size_t packed_v_bytes(int64_t d_v) {
  return static_cast<size_t>(kPackedRegisters * kRegisterBytes * (d_v / kRegisterRows));
}

TW_BF16 inline void pack_v(const KvTile<BF16>& v, int64_t d_v, void* packed) {
  constexpr int64_t kNext = kPackedRegisters * kRegisterElements;
  constexpr int64_t kGroups = kRegisterRows / PanelPacker<1>::kPairs;  // of a register
  const int64_t steps = registers_of(v.count);
  // The keys of a register stay in L1 while all their columns are packed.
  for (int64_t step = 0; step < steps; ++step) {
    auto* left = static_cast<uint16_t*>(packed);
    for (int64_t c = 0; c < d_v; c += 2 * kRegisterRows, left += 2 * kNext) {
      const PanelPacker<1> panel{{v}, c, steps * kGroups, left, left + kNext};
      for (int64_t i = 0; i < kGroups; ++i) panel.pack(step * kGroups + i);
    }
  }
}

/// While a panel is multiplied, the next one is packed.
template <class Unit, bool kContinue, size_t kTerms>
TW_BF16 void accumulate_panels(Product x, Terms terms, int64_t d) {
  constexpr int64_t kColumns = 2 * kRegisterRows;
  constexpr int64_t kGroups = kRegisterRows / PanelPacker<kTerms>::kPairs;  // of a register
  alignas(64) uint16_t panels[2][kColumns * kPanelRows];
  const auto packer = [&](int64_t c) {
    uint16_t* left = panels[c / kColumns % 2];
    PanelPacker<kTerms> panel{{}, c, x.steps * kGroups, left, left + x.b_next / 2};
    for (size_t i = 0; i < kTerms; ++i) panel.tiles[i] = terms[i].rows;
    return panel;
  };
  const PanelPacker<kTerms> first = packer(0);
  for (int64_t i = 0; i < first.groups(); ++i) first.pack(i);
  const int64_t blocks = (x.rows + Unit::kBlockRows - 1) / Unit::kBlockRows;
  // At so many groups a step, the next panel is packed when the last block is done.
  const int64_t groups_a_step = (kGroups + blocks - 1) / blocks;
  x.columns = 2;
  for (int64_t c = 0; c < d; c += kColumns) {
    x.b[0] = reinterpret_cast<const std::byte*>(panels[c / kColumns % 2]);
    x.b[1] = x.b[0] + x.steps * kRegisterBytes;
    if (c + kColumns < d) {
      const PanelPacker<kTerms> next = packer(c + kColumns);
      const int64_t groups = next.groups();
      Unit::template multiply<kContinue, kTerms>(x, [=](int64_t step) TW_BF16 {
        const int64_t end = std::min((step + 1) * groups_a_step, groups);
        for (int64_t group = step * groups_a_step; group < end; ++group) next.pack(group);
      });
    } else {
      Unit::template multiply<kContinue, kTerms>(x, [](int64_t) {});
    }
    x.c += kColumns * 4;
  }
}

/// The terms' weights and the sums' place; B is left out.
inline Product product_of(Terms terms, int64_t rows, float* o, int64_t ld_o) {
  Product x{};
  x.rows = rows;
  for (size_t i = 0; i < terms.size(); ++i) x.a[i] = static_cast<const std::byte*>(terms[i].weights);
  x.steps = registers_of(terms[0].rows.count);
  x.pairs = (terms[0].rows.count + 1) / 2;
  x.a_stride = 64;
  x.a_next = x.steps * kRegisterBytes;
  x.a_step = kRegisterBytes;
  x.b_next = static_cast<int64_t>(terms.size()) * x.steps * kRegisterBytes;
  x.c = reinterpret_cast<std::byte*>(o);
  x.c_stride = ld_o * 4;
  return x;
}

template <class Unit, bool kContinue, size_t kTerms>
TW_BF16 void accumulate_packed(Product x, Terms terms, int64_t d) {
  for (size_t i = 0; i < kTerms; ++i) x.b[i] = static_cast<const std::byte*>(terms[i].rows.packed);
  x.b_next = kPackedRegisters * kRegisterBytes;
  // Two registers of columns, of which there may be more than fit L1, for all rows.
  for (int64_t c = 0; c < d / kRegisterRows; c += 2) {
    Unit::template multiply<kContinue, kTerms>(x.template from<kTerms>(0, c), [](int64_t) {});
  }
}

template <class Unit, bool kContinue, size_t kTerms>
TW_BF16 void accumulate_terms(const Product& x, Terms terms, int64_t d) {
  if (terms[0].rows.packed != nullptr) {
    accumulate_packed<Unit, kContinue, kTerms>(x, terms, d);
  } else {
    accumulate_panels<Unit, kContinue, kTerms>(x, terms, d);
  }
}

template <class Unit>
TW_BF16 void accumulate(const void* p, const KvTile<BF16>& v, int64_t m, int64_t d_v, const float* rescale,
                        float* o, int64_t ld_o) {
  if (rescale != nullptr) rescale_rows(rescale, m, d_v, o, ld_o);
  const WeightedRows<BF16> term{p, v};
  const Terms terms{&term, 1};
  const auto add = rescale == nullptr ? accumulate_terms<Unit, false, 1> : accumulate_terms<Unit, true, 1>;
  add(product_of(terms, m, o, ld_o), terms, d_v);
}

template <class Unit>
TW_BF16 void accumulate_keys(Terms terms, int64_t keys, int64_t d, bool first, float* dv, int64_t ld_dv) {
  const Product x = product_of(terms, keys, dv, ld_dv);
  if (terms.size() == 1) {
    const auto add = first ? accumulate_terms<Unit, false, 1> : accumulate_terms<Unit, true, 1>;
    add(x, terms, d);
  } else {
    const auto add = first ? accumulate_terms<Unit, false, 2> : accumulate_terms<Unit, true, 2>;
    add(x, terms, d);
  }
}

template <class Unit>
constexpr TileOps bf16_tile_ops() {
  return {.packed_q_bytes = packed_q_bytes,
          .pack_q = pack_q<float>,
          .pack_q_bf16 = pack_q<BF16>,
          .scores = scores<Unit>,
          .scores_f32 = nullptr,
          .packed_v_bytes = packed_v_bytes,
          .pack_v = pack_v,
          .accumulate = accumulate<Unit>,
          .accumulate_f32 = nullptr,
          .accumulate_keys = accumulate_keys<Unit>,
          .accumulate_keys_f32 = nullptr,
          .enter = Unit::enter,
          .leave = Unit::leave};
}

}  // namespace tilewise::cpu
