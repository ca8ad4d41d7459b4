// Tile products on AMX-BF16. A tile register holds 16 rows of 64 bytes.
//
//   product      C (fp32)              A, one row a register row  B, pairs of rows interleaved  sums over
//   scores       S^T: 16 keys x rows   K as it lies: 32 columns   Q, packed once a query tile   d
//   accumulate   O: 16 rows x columns  P, from the softmax        V, packed for all rows        keys
//   accumulate_keys: as accumulate, with keys and rows in each other's place
//
//   registers    0..3 a block of 2 x 2 sums, 4 and 5 its A, 6 and 7 its B. Where only one row or column of
//                sums is left, the others are not touched.
//
// B has in register row i and 32-bit column n the bf16 pair (b[2i][n], b[2i+1][n]).
//
// The registers' shape never changes: keys past the tile's end are read from its buffer, and their scores
// written to it, but they take no part in a sum. Subnormal numbers count as zero in these products.
#include "cpu/tile/amx.h"

#if defined(__x86_64__)
#include <algorithm>
#include <array>

#include "cpu/tile/amx-inl.h"

namespace tilewise::cpu {
namespace {

// The instructions' own intrinsics do not tell the compiler which memory they read and write.
#define TW_LOAD_TILE(tile, base, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"(static_cast<int64_t>(stride)) : "memory")
#define TW_STORE_TILE(tile, base, stride)                                                            \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"(static_cast<int64_t>(stride)) \
               : "memory")
#define TW_ZERO_TILE(tile) asm volatile("tilezero %%tmm" #tile ::)
// sums += a * b
#define TW_MULTIPLY(sums, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums ::)

/// Where the operands of a block of sums lie; strides in bytes.
struct Block {
  const std::byte* a;
  int64_t a_stride;  // between register rows
  int64_t a_next;    // to the second A
  int64_t a_step;    // along the sum
  const std::byte* b;
  int64_t b_next;
  int64_t b_step;
  std::byte* c;
  int64_t c_stride;
  int64_t c_next_row;
  int64_t steps;
};

/// A block of kA x kB sums. The sums that lie in memory are continued (kContinue) or overwritten. The vector
/// units are free while the products run: `meanwhile()` is called at every step.
template <int kA, int kB, bool kContinue, class Meanwhile>
TW_AMX inline void multiply_block(const Block& x, const Meanwhile& meanwhile) {
  std::byte* lower = x.c + x.c_next_row;
  constexpr int64_t kNextColumn = kRegisterRows * 4;
  if constexpr (kContinue) {
    TW_LOAD_TILE(0, x.c, x.c_stride);
    if constexpr (kB == 2) TW_LOAD_TILE(1, x.c + kNextColumn, x.c_stride);
    if constexpr (kA == 2) TW_LOAD_TILE(2, lower, x.c_stride);
    if constexpr (kA == 2 && kB == 2) TW_LOAD_TILE(3, lower + kNextColumn, x.c_stride);
  } else {
    TW_ZERO_TILE(0);
    if constexpr (kB == 2) TW_ZERO_TILE(1);
    if constexpr (kA == 2) TW_ZERO_TILE(2);
    if constexpr (kA == 2 && kB == 2) TW_ZERO_TILE(3);
  }
  const std::byte* a = x.a;
  const std::byte* b = x.b;
  for (int64_t i = 0; i < x.steps; ++i) {
    TW_LOAD_TILE(4, a, x.a_stride);
    TW_LOAD_TILE(6, b, 64);
    TW_MULTIPLY(0, 4, 6);
    if constexpr (kB == 2) {
      TW_LOAD_TILE(7, b + x.b_next, 64);
      TW_MULTIPLY(1, 4, 7);
    }
    if constexpr (kA == 2) {
      TW_LOAD_TILE(5, a + x.a_next, x.a_stride);
      TW_MULTIPLY(2, 5, 6);
      if constexpr (kB == 2) TW_MULTIPLY(3, 5, 7);
    }
    a += x.a_step;
    b += x.b_step;
    meanwhile();
  }
  TW_STORE_TILE(0, x.c, x.c_stride);
  if constexpr (kB == 2) TW_STORE_TILE(1, x.c + kNextColumn, x.c_stride);
  if constexpr (kA == 2) TW_STORE_TILE(2, lower, x.c_stride);
  if constexpr (kA == 2 && kB == 2) TW_STORE_TILE(3, lower + kNextColumn, x.c_stride);
}

template <bool kContinue, class Meanwhile>
TW_AMX inline void multiply(const Block& x, int64_t a_left, int64_t b_left, const Meanwhile& meanwhile) {
  if (a_left > 1) {
    b_left > 1 ? multiply_block<2, 2, kContinue>(x, meanwhile)
               : multiply_block<2, 1, kContinue>(x, meanwhile);
  } else {
    b_left > 1 ? multiply_block<1, 2, kContinue>(x, meanwhile)
               : multiply_block<1, 1, kContinue>(x, meanwhile);
  }
}

// ---- Q and scores -------------------------------------------------------------------------------

size_t packed_q_bytes(int64_t m, int64_t d) { return static_cast<size_t>(padded_rows(m) * d) * sizeof(BF16); }

/// [rows / 16][d / 32] registers of B: register row i holds columns 2i and 2i + 1 of 16 query rows.
TW_AMX void pack_q(const float* q, int64_t m, int64_t d, void* packed) {
  auto* out = static_cast<uint16_t*>(packed);
  for (int64_t r0 = 0; r0 < padded_rows(m); r0 += kRegisterRows) {
    for (int64_t c = 0; c < d; c += kRegisterDepth, out += kRegisterElements) {
      __m512i pairs[kRegisterRows];  // a query row's 16 pairs of columns
      for (int64_t r = 0; r < kRegisterRows; ++r) {
        const float* from = q + (r0 + r) * d + c;
        pairs[r] =
            r0 + r < m ? narrow(_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)) : _mm512_setzero_si512();
      }
      transpose(pairs);
      for (int64_t i = 0; i < kRegisterRows; ++i) _mm512_storeu_si512(out + i * kRegisterDepth, pairs[i]);
    }
  }
}

TW_AMX void scores(const KvTile<BF16>& k, int64_t d, const void* packed_q, int64_t m, float* s) {
  const int64_t row_tiles = padded_rows(m) / kRegisterRows;
  const int64_t key_tiles = (k.count + kRegisterRows - 1) / kRegisterRows;
  const int64_t q_tile_row = d / kRegisterDepth * kRegisterBytes;
  Block x{};
  x.a_stride = k.ld * 2;
  x.a_next = kRegisterRows * x.a_stride;
  x.a_step = kRegisterDepth * 2;
  x.b_next = q_tile_row;
  x.b_step = kRegisterBytes;
  x.c_stride = padded_rows(m) * 4;
  x.c_next_row = kRegisterRows * x.c_stride;
  x.steps = d / kRegisterDepth;
  for (int64_t i = 0; i < key_tiles; i += 2) {
    x.a = reinterpret_cast<const std::byte*>(k.rows) + i * x.a_next;
    for (int64_t j = 0; j < row_tiles; j += 2) {
      x.b = static_cast<const std::byte*>(packed_q) + j * q_tile_row;
      x.c = reinterpret_cast<std::byte*>(s) + i * x.c_next_row + j * kRegisterRows * 4;
      multiply<false>(x, key_tiles - i, row_tiles - j, [] {});
    }
  }
}

// ---- P, V and the output ------------------------------------------------------------------------

/// Packs 32 columns of V into two registers of B for every 32 keys, one pair of keys at a time. Keys past the
/// last one are zero.
struct ValuePacker {
  const BF16* v;  // the columns of key 0
  int64_t ld;
  int64_t count;
  uint16_t* left;  // [registers_of(count)]
  uint16_t* right;

  int64_t pairs() const { return registers_of(count) * kRegisterRows; }

  TW_AMX void pack(int64_t pair) const {
    // Interleaves two rows of 32 columns: the first 16 columns, then the others.
    const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
                                           7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const BF16* from = v + 2 * pair * ld;
    const __m512i even = 2 * pair < count ? _mm512_loadu_si512(from) : _mm512_setzero_si512();
    const __m512i odd = 2 * pair + 1 < count ? _mm512_loadu_si512(from + ld) : _mm512_setzero_si512();
    _mm512_storeu_si512(left + pair * kRegisterDepth, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_storeu_si512(right + pair * kRegisterDepth, _mm512_permutex2var_epi16(even, second, odd));
  }
};

TW_AMX void rescale_rows(const float* rescale, int64_t m, int64_t d_v, float* o, int64_t ld_o) {
  for (int64_t r = 0; r < m; ++r) {
    if (rescale[r] == 1.0f) continue;
    const __m512 factor = _mm512_set1_ps(rescale[r]);
    float* row = o + r * ld_o;
    for (int64_t c = 0; c < d_v; c += 16) {
      _mm512_storeu_ps(row + c, _mm512_mul_ps(_mm512_loadu_ps(row + c), factor));
    }
  }
}

/// Keys whose V is packed at a time: two panels of 32 columns of them stay in L1.
constexpr int64_t kPanelKeys = 256;

/// Up to kPanelKeys keys. While a panel is multiplied, the next one is packed.
template <bool kContinue>
TW_AMX void accumulate_panels(Block x, const KvTile<BF16>& v, int64_t row_tiles, int64_t d_v) {
  constexpr int64_t kColumns = 2 * kRegisterRows;
  alignas(64) uint16_t panels[2][kColumns * kPanelKeys];
  x.steps = registers_of(v.count);
  x.b_next = x.steps * kRegisterBytes;
  const auto packer = [&](int64_t c) {
    uint16_t* left = panels[c / kColumns % 2];
    return ValuePacker{v.rows + c, v.ld, v.count, left, left + x.steps * kRegisterElements};
  };
  const ValuePacker first = packer(0);
  for (int64_t i = 0; i < first.pairs(); ++i) first.pack(i);
  const int64_t blocks = (row_tiles + 1) / 2;
  // At so many pairs a step, the next panel is packed when the last block is done.
  const int64_t pairs_a_step = (kRegisterRows + blocks - 1) / blocks;
  for (int64_t c = 0; c < d_v; c += kColumns) {
    const ValuePacker next = packer(c + kColumns < d_v ? c + kColumns : c);
    const int64_t pairs = c + kColumns < d_v ? next.pairs() : 0;
    int64_t pair = 0;
    x.b = reinterpret_cast<const std::byte*>(panels[c / kColumns % 2]);
    for (int64_t j = 0; j < row_tiles; j += 2) {
      Block block = x;
      block.a += j * x.a_next;
      block.c += j * x.c_next_row + c * 4;
      multiply<kContinue>(block, row_tiles - j, 2, [&]() TW_AMX {
        const int64_t end = std::min(pair + pairs_a_step, pairs);
        for (; pair < end; ++pair) next.pack(pair);
      });
    }
  }
}

TW_AMX void accumulate_tile(const void* p, const KvTile<BF16>& v, int64_t m, int64_t d_v, bool overwrite,
                            float* o, int64_t ld_o) {
  Block x{};
  x.a_stride = 64;
  x.a_next = registers_of(v.count) * kRegisterBytes;
  x.a_step = kRegisterBytes;
  x.b_step = kRegisterBytes;
  x.c = reinterpret_cast<std::byte*>(o);
  x.c_stride = ld_o * 4;
  x.c_next_row = kRegisterRows * x.c_stride;
  for (int64_t key = 0; key < v.count; key += kPanelKeys) {
    x.a = static_cast<const std::byte*>(p) + key / kRegisterDepth * kRegisterBytes;
    const KvTile<BF16> part{v.rows + key * v.ld, v.ld, std::min(kPanelKeys, v.count - key)};
    const auto run = key == 0 && overwrite ? accumulate_panels<false> : accumulate_panels<true>;
    run(x, part, padded_rows(m) / kRegisterRows, d_v);
  }
}

TW_AMX void accumulate(const void* p, const KvTile<BF16>& v, int64_t m, int64_t d_v, const float* rescale,
                       float* o, int64_t ld_o) {
  if (rescale != nullptr) rescale_rows(rescale, m, d_v, o, ld_o);
  accumulate_tile(p, v, m, d_v, rescale == nullptr, o, ld_o);
}

TW_AMX void accumulate_keys(const void* p, const KvTile<BF16>& rows, int64_t keys, int64_t d, bool first,
                            float* dv, int64_t ld_dv) {
  accumulate_tile(p, rows, keys, d, first, dv, ld_dv);
}

// ---- the registers ------------------------------------------------------------------------------

/// The operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint8_t, 16> rows{16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

void enter() {
  static constexpr TileConfig kConfig;
  asm volatile("ldtilecfg %0" ::"m"(kConfig));
}

void leave() { asm volatile("tilerelease" ::); }

}  // namespace

const TileOps* amx_tile_ops() {
  static constexpr TileOps kOps = {.packed_q_bytes = packed_q_bytes,
                                   .pack_q = pack_q,
                                   .scores = scores,
                                   .scores_f32 = nullptr,
                                   .accumulate = accumulate,
                                   .accumulate_f32 = nullptr,
                                   .accumulate_keys = accumulate_keys,
                                   .accumulate_keys_f32 = nullptr,
                                   .enter = enter,
                                   .leave = leave};
  return &kOps;
}

}  // namespace tilewise::cpu

#else
namespace tilewise::cpu {
const TileOps* amx_tile_ops() { return nullptr; }
}  // namespace tilewise::cpu
#endif
