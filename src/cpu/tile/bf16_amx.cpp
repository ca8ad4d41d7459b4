// Tile products on AMX-BF16. A tile register holds 16 rows of 64 bytes.
//
//   registers    0..3 a block of 2 x 2 sums, 4 and 5 its A, 6 and 7 its B. Where only one row or column of
//                sums is left, the others are not touched.
//   a step       4 and 6 are there when it begins; 7 and 5 are loaded between the four products, and so are
//                4 and 6 of the next step, or of the next block
//
// The registers' shape never changes: keys past the tile's end are read from its buffer, and their scores
// written to it, but they take no part in a sum.
#include "cpu/tile/bf16.h"

#if defined(__x86_64__)
#include <algorithm>
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

  template <bool kContinue, size_t kTerms, class Meanwhile>
  TW_BF16 static void multiply(const Product& x, const Meanwhile& meanwhile) {
    // Copies, because the instructions' clobbers would have what lies in memory read again at every step.
    const Walk walk{x.steps, x.a_stride, x.a_next, x.a_step, x.b_next, x.c_stride};
    const int64_t rows = x.rows;
    const int64_t columns = x.columns;
    std::byte* row_c = x.c;
    Operands<kTerms> start(x);  // of a row of blocks
    TW_LOAD_TILE(4, start.a[0], walk.a_stride);
    TW_LOAD_TILE(6, start.b[0], 64);
    int64_t step = 0;
    for (int64_t row = 0; row < rows; row += kBlockRows) {
      Operands<kTerms> here = start;
      std::byte* c = row_c;
      row_c += kBlockRows * walk.c_stride;
      start.move_a(2 * walk.a_next);
      // Behind the last row nothing may be read: there the first row's operands are loaded, and not used.
      if (row + kBlockRows >= rows) start = Operands<kTerms>(x);
      for (int64_t column = 0; column < columns; column += 2) {
        Operands<kTerms> next = here;
        next.move_b(2 * walk.b_next);
        if (column + 2 >= columns) next = start;
        if (rows - row > kRegisterRows) {
          columns - column > 1 ? multiply_block<2, 2, kContinue>(walk, here, next, c, meanwhile, step)
                               : multiply_block<2, 1, kContinue>(walk, here, next, c, meanwhile, step);
        } else {
          columns - column > 1 ? multiply_block<1, 2, kContinue>(walk, here, next, c, meanwhile, step)
                               : multiply_block<1, 1, kContinue>(walk, here, next, c, meanwhile, step);
        }
        here = next;
        c += 2 * kNextColumn;
      }
    }
  }

  static void enter() {
    static constexpr TileConfig kConfig;
    asm volatile("ldtilecfg %0" ::"m"(kConfig));
  }

  static void leave() { asm volatile("tilerelease" ::); }

 private:
  static constexpr int64_t kNextColumn = kRegisterRows * 4;

  /// The strides of a Product.
  struct Walk {
    int64_t steps;
    int64_t a_stride;
    int64_t a_next;
    int64_t a_step;
    int64_t b_next;
    int64_t c_stride;
  };

  /// Where a block's operands begin.
  template <size_t kTerms>
  struct Operands {
    std::array<const std::byte*, kTerms> a;
    std::array<const std::byte*, kTerms> b;

    explicit Operands(const Product& x) {
      std::copy_n(x.a.begin(), kTerms, a.begin());
      std::copy_n(x.b.begin(), kTerms, b.begin());
    }
    void move_a(int64_t bytes) {
      for (auto& term : a) term += bytes;
    }
    void move_b(int64_t bytes) {
      for (auto& term : b) term += bytes;
    }
  };

  /// A block of kA x kB registers of sums. Its first registers of A and B are there already, and it leaves
  /// the next block's there: they are on their way while this block's sums are stored.
  template <int kA, int kB, bool kContinue, size_t kTerms, class Meanwhile>
  TW_BF16 [[gnu::always_inline]] static void multiply_block(const Walk walk, const Operands<kTerms>& here,
                                                            const Operands<kTerms>& next, std::byte* upper,
                                                            const Meanwhile& meanwhile, int64_t& step) {
    std::byte* lower = upper + kRegisterRows * walk.c_stride;
    if constexpr (kContinue) {
      TW_LOAD_TILE(0, upper, walk.c_stride);
      if constexpr (kB == 2) TW_LOAD_TILE(1, upper + kNextColumn, walk.c_stride);
      if constexpr (kA == 2) TW_LOAD_TILE(2, lower, walk.c_stride);
      if constexpr (kA == 2 && kB == 2) TW_LOAD_TILE(3, lower + kNextColumn, walk.c_stride);
    } else {
      TW_ZERO_TILE(0);
      if constexpr (kB == 2) TW_ZERO_TILE(1);
      if constexpr (kA == 2) TW_ZERO_TILE(2);
      if constexpr (kA == 2 && kB == 2) TW_ZERO_TILE(3);
    }
#pragma GCC unroll 2
    for (size_t term = 0; term < kTerms; ++term) {
      const std::byte* a = here.a[term];
      const std::byte* b = here.b[term];
      const std::byte* then_a = term + 1 < kTerms ? here.a[(term + 1) % kTerms] : next.a[0];
      const std::byte* then_b = term + 1 < kTerms ? here.b[(term + 1) % kTerms] : next.b[0];
      for (int64_t i = walk.steps; i > 0; --i) {
        const std::byte* a_after = i > 1 ? a + walk.a_step : then_a;
        const std::byte* b_after = i > 1 ? b + kRegisterBytes : then_b;
        TW_MULTIPLY(0, 4, 6);
        if constexpr (kB == 2) {
          TW_LOAD_TILE(7, b + walk.b_next, 64);
          TW_MULTIPLY(1, 4, 7);
        }
        TW_LOAD_TILE(4, a_after, walk.a_stride);
        if constexpr (kA == 2) {
          TW_LOAD_TILE(5, a + walk.a_next, walk.a_stride);
          TW_MULTIPLY(2, 5, 6);
        }
        TW_LOAD_TILE(6, b_after, 64);
        if constexpr (kA == 2 && kB == 2) TW_MULTIPLY(3, 5, 7);
        a = a_after;
        b = b_after;
        meanwhile(step++);
      }
    }
    TW_STORE_TILE(0, upper, walk.c_stride);
    if constexpr (kB == 2) TW_STORE_TILE(1, upper + kNextColumn, walk.c_stride);
    if constexpr (kA == 2) TW_STORE_TILE(2, lower, walk.c_stride);
    if constexpr (kA == 2 && kB == 2) TW_STORE_TILE(3, lower + kNextColumn, walk.c_stride);
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
