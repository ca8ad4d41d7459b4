// Tile products on AVX-512 BF16, whose instruction adds the products of two neighbouring elements to each of
// 16 sums.
//
//   registers    16 hold a block of 8 rows x 2 vectors of sums, two hold B, one a pair of A in all lanes
//
// A pair's second element comes first, and each of the two additions is rounded.
#include "cpu/tile/bf16.h"

#if defined(__x86_64__)
#include <cstring>

#include "cpu/tile/bf16_products-inl.h"

namespace tilewise::cpu {
namespace {

class DotUnit {
 public:
  static constexpr int64_t kBlockRows = 8;

  template <bool kContinue, size_t kTerms, class Meanwhile>
  TW_BF16 static void multiply(const Product& x, const Meanwhile& meanwhile) {
    int64_t step = 0;
    for (int64_t row = 0; row < x.rows; row += kBlockRows) {
      for (int64_t column = 0; column < x.columns; column += 2) {
        const Product block = x.template from<kTerms>(row, column);
        x.columns - column > 1 ? multiply_block<2, kContinue, kTerms>(block, meanwhile, step)
                               : multiply_block<1, kContinue, kTerms>(block, meanwhile, step);
      }
    }
  }

  static void enter() {}
  static void leave() {}

 private:
  TW_BF16 static __m512bh pair_at(const std::byte* p) {
    int32_t pair = 0;
    std::memcpy(&pair, p, sizeof(pair));
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }

  /// Adds the products of so many pairs of a register's elements.
  template <int kB>
  TW_BF16 [[gnu::always_inline]] static void add_pairs(const std::byte* a, int64_t a_stride,
                                                       const std::byte* b, int64_t b_next, int64_t pairs,
                                                       __m512 (&sums)[kBlockRows][kB]) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
      __m512bh row[kB];
      for (int64_t n = 0; n < kB; ++n) {
        row[n] = reinterpret_cast<__m512bh>(_mm512_load_si512(b + n * b_next + pair * 64));
      }
#pragma GCC unroll 8
      for (int64_t r = 0; r < kBlockRows; ++r) {
        const __m512bh weights = pair_at(a + r * a_stride + pair * 4);
        for (int64_t n = 0; n < kB; ++n) sums[r][n] = _mm512_dpbf16_ps(sums[r][n], weights, row[n]);
      }
    }
  }

  template <int kB, bool kContinue, size_t kTerms, class Meanwhile>
  TW_BF16 static void multiply_block(const Product& x, const Meanwhile& meanwhile, int64_t& step) {
    const int64_t c_stride = x.c_stride / 4;
    auto* c = reinterpret_cast<float*>(x.c);
    __m512 sums[kBlockRows][kB];
#pragma GCC unroll 8
    for (int64_t r = 0; r < kBlockRows; ++r) {
      for (int64_t n = 0; n < kB; ++n) {
        sums[r][n] = kContinue ? _mm512_loadu_ps(c + r * c_stride + n * 16) : _mm512_setzero_ps();
      }
    }
    constexpr int64_t kPairs = kRegisterDepth / 2;
    for (size_t term = 0; term < kTerms; ++term) {
      const std::byte* a = x.a[term];
      const std::byte* b = x.b[term];
      for (int64_t i = 0; i < x.steps; ++i) {
        // A count that the compiler knows is faster.
        if (x.pairs - i * kPairs >= kPairs) {
          add_pairs<kB>(a, x.a_stride, b, x.b_next, kPairs, sums);
        } else {
          add_pairs<kB>(a, x.a_stride, b, x.b_next, x.pairs - i * kPairs, sums);
        }
        a += x.a_step;
        b += kRegisterBytes;
        meanwhile(step++);
      }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < kBlockRows; ++r) {
      for (int64_t n = 0; n < kB; ++n) _mm512_storeu_ps(c + r * c_stride + n * 16, sums[r][n]);
    }
  }
};

}  // namespace

const TileOps* dot_tile_ops() {
  static constexpr TileOps kOps = bf16_tile_ops<DotUnit>();
  return &kOps;
}

}  // namespace tilewise::cpu

#else
namespace tilewise::cpu {
const TileOps* dot_tile_ops() { return nullptr; }
}  // namespace tilewise::cpu
#endif
