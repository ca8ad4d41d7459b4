// What the kernels that multiply bf16 share: how their operands are laid out. x86-64 only.
//
// Operands come in registers of 16 rows of 32 bf16 elements: a tile register of AMX, or 16 vectors of
// AVX-512.
#pragma once

// The intrinsics' own temporaries are undefined on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

#define TW_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))

namespace tilewise::cpu {

constexpr int64_t kRegisterRows = 16;
constexpr int64_t kRegisterDepth = 32;  // bf16 elements in a register row
constexpr int64_t kRegisterBytes = 1024;
constexpr int64_t kRegisterElements = kRegisterBytes / 2;

/// Registers that hold the weights of 16 rows for so many keys. P lies as [rows / 16][registers][16 rows][32
/// keys], keys past the last one with weight 0.
constexpr int64_t registers_of(int64_t keys) { return (keys + kRegisterDepth - 1) / kRegisterDepth; }

/// 32 values as bf16, in order.
TW_BF16 inline __m512i narrow(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// The 32-bit lane n of the result is the bf16 pair (low[n], high[n]).
TW_BF16 inline __m512i pair_of(__m512 low, __m512 high) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                         22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, narrow(low, high));
}

/// Transposes a 16 x 16 block of 32-bit elements.
TW_BF16 inline void transpose(__m512i* v) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xDD);
  }
  for (int i = 0; i < 8; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
  }
}

/// 2^x, NaN for NaN. The polynomial is 1 at 0 and off by less than 2e-7 in [0, 1).
TW_BF16 inline __m512 exp2_of(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // x - floor(x)
  __m512 y = _mm512_set1_ps(0.001867130515165627f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.009017028845846653f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.05579991266131401f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24016444385051727f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931512951850891f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, x);  // times 2^floor(x)
}

TW_BF16 inline __m512 exp_of(__m512 x) { return exp2_of(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f))); }

/// Which of a vector's rows see a key.
struct AllKeys {
  TW_BF16 __mmask16 at(int64_t) const { return 0xFFFF; }
};

struct KeyLimits {
  __m512i first;
  __m512i last;
  TW_BF16 __mmask16 at(int64_t key) const {
    const __m512i k = _mm512_set1_epi32(static_cast<int>(key));
    return _mm512_cmple_epi32_mask(first, k) & _mm512_cmplt_epi32_mask(k, last);
  }
};

}  // namespace tilewise::cpu
