// Tile products on AMX-BF16. A tile register holds 16 rows of 64 bytes.
//
//   registers    0..3 a block of 2 x 2 sums, 4 and 5 its A, 6 and 7 its B. Where only one row or column of
//                sums is left, the others are not touched.
//
// The registers' shape never changes: keys past the tile's end are read from its buffer, and their scores
// written to it, but they take no part in a sum.
#include "cpu/tile/bf16.h"

#if defined(__x86_64__)
#include <array>

#include "cpu/tile/bf16_products-inl.h"

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

/// The operand of ldtilecfg.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint8_t, 16> rows{16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

class AmxUnit {
 public:
  static constexpr int64_t kBlockRows = 2 * kRegisterRows;

  template <bool kContinue, class Meanwhile>
  TW_BF16 static void multiply(const Block& x, int64_t rows, int64_t columns, const Meanwhile& meanwhile) {
    if (rows > kRegisterRows) {
      columns > 1 ? multiply_block<2, 2, kContinue>(x, meanwhile)
                  : multiply_block<2, 1, kContinue>(x, meanwhile);
    } else {
      columns > 1 ? multiply_block<1, 2, kContinue>(x, meanwhile)
                  : multiply_block<1, 1, kContinue>(x, meanwhile);
    }
  }

  static void enter() {
    static constexpr TileConfig kConfig;
    asm volatile("ldtilecfg %0" ::"m"(kConfig));
  }

  static void leave() { asm volatile("tilerelease" ::); }

 private:
  /// A block of kA x kB registers of sums.
  template <int kA, int kB, bool kContinue, class Meanwhile>
  TW_BF16 static void multiply_block(const Block& x, const Meanwhile& meanwhile) {
    // Copies, because the instructions' clobbers would have what lies in memory read again at every step.
    const int64_t terms = x.terms;
    const int64_t steps = x.steps;
    const int64_t a_stride = x.a_stride;
    const int64_t a_next = x.a_next;
    const int64_t a_step = x.a_step;
    const int64_t b_next = x.b_next;
    const int64_t c_stride = x.c_stride;
    std::byte* upper = x.c;
    std::byte* lower = upper + kRegisterRows * c_stride;
    constexpr int64_t kNextColumn = kRegisterRows * 4;
    if constexpr (kContinue) {
      TW_LOAD_TILE(0, upper, c_stride);
      if constexpr (kB == 2) TW_LOAD_TILE(1, upper + kNextColumn, c_stride);
      if constexpr (kA == 2) TW_LOAD_TILE(2, lower, c_stride);
      if constexpr (kA == 2 && kB == 2) TW_LOAD_TILE(3, lower + kNextColumn, c_stride);
    } else {
      TW_ZERO_TILE(0);
      if constexpr (kB == 2) TW_ZERO_TILE(1);
      if constexpr (kA == 2) TW_ZERO_TILE(2);
      if constexpr (kA == 2 && kB == 2) TW_ZERO_TILE(3);
    }
    for (int64_t term = 0; term < terms; ++term) {
      const std::byte* a = x.a[term];
      const std::byte* b = x.b[term];
      for (int64_t i = 0; i < steps; ++i) {
        TW_LOAD_TILE(4, a, a_stride);
        TW_LOAD_TILE(6, b, 64);
        TW_MULTIPLY(0, 4, 6);
        if constexpr (kB == 2) {
          TW_LOAD_TILE(7, b + b_next, 64);
          TW_MULTIPLY(1, 4, 7);
        }
        if constexpr (kA == 2) {
          TW_LOAD_TILE(5, a + a_next, a_stride);
          TW_MULTIPLY(2, 5, 6);
          if constexpr (kB == 2) TW_MULTIPLY(3, 5, 7);
        }
        a += a_step;
        b += kRegisterBytes;
        meanwhile();
      }
    }
    TW_STORE_TILE(0, upper, c_stride);
    if constexpr (kB == 2) TW_STORE_TILE(1, upper + kNextColumn, c_stride);
    if constexpr (kA == 2) TW_STORE_TILE(2, lower, c_stride);
    if constexpr (kA == 2 && kB == 2) TW_STORE_TILE(3, lower + kNextColumn, c_stride);
  }
};

}  // namespace

const TileOps* amx_tile_ops() {
  static constexpr TileOps kOps = bf16_tile_ops<AmxUnit>();
  return &kOps;
}

}  // namespace tilewise::cpu

#else
namespace tilewise::cpu {
const TileOps* amx_tile_ops() { return nullptr; }
}  // namespace tilewise::cpu
#endif
