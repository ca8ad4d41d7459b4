// The online softmax over a tile of scores that leaves P as the bf16 registers that are multiplied:
// [row][key], while the scores lie as [key][row]. A vector holds 16 neighbouring rows; 32 keys of them make
// one register.
#include "cpu/tile/bf16.h"

#if defined(__x86_64__)
#include <algorithm>
#include <limits>

#include "cpu/tile/bf16-inl.h"

namespace tilewise::cpu {
namespace {

/// Scores of 16 rows, and what they have in common.
template <class Keys>
struct Scores {
  const float* s;  // [count][ld]
  int64_t ld;
  int64_t count;
  __m512 scale;
  Keys keys;

  /// The greatest scaled score so far; where a score is NaN, NaN or any number.
  TW_BF16 __m512 max(__m512 before) const {
    __m512 m[4] = {before, before, before, before};
    for (int64_t k = 0; k < count; k += 4) {
      for (int64_t i = 0; i < std::min<int64_t>(4, count - k); ++i) {
        const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(s + (k + i) * ld), scale);
        m[i] = _mm512_mask_max_ps(m[i], keys.at(k + i), m[i], x);
      }
    }
    return _mm512_max_ps(_mm512_max_ps(m[0], m[1]), _mm512_max_ps(m[2], m[3]));
  }

  /// Rows that have a NaN among their scores.
  TW_BF16 __mmask16 nans() const {
    __mmask16 found = 0;
    for (int64_t k = 0; k < count; ++k) {
      const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(s + k * ld), scale);
      found |= _mm512_mask_cmp_ps_mask(keys.at(k), x, x, _CMP_UNORD_Q);
    }
    return found;
  }

  TW_BF16 __m512 weight(int64_t key, __m512 base) const {
    if (key >= count) return _mm512_setzero_ps();
    // Rounded as the maximum was: the greatest score's weight is exactly 1.
    const __m512 x = _mm512_sub_ps(_mm512_mul_ps(_mm512_loadu_ps(s + key * ld), scale), base);
    return _mm512_maskz_mov_ps(keys.at(key), exp_of(x));
  }

  /// Writes P and gives its sums.
  TW_BF16 __m512 weigh(__m512 base, uint16_t* p) const {
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t k = 0; k < count; k += kRegisterDepth, p += kRegisterElements) {
      __m512i pairs[kRegisterRows];
      for (int64_t i = 0; i < kRegisterRows; ++i) {
        const __m512 even = weight(k + 2 * i, base);
        const __m512 odd = weight(k + 2 * i + 1, base);
        sum[0] = _mm512_add_ps(sum[0], even);
        sum[1] = _mm512_add_ps(sum[1], odd);
        pairs[i] = pair_of(even, odd);
      }
      transpose(pairs);
      for (int64_t i = 0; i < kRegisterRows; ++i) _mm512_storeu_si512(p + i * kRegisterDepth, pairs[i]);
    }
    return _mm512_add_ps(sum[0], sum[1]);
  }
};

template <class Keys>
TW_BF16 void softmax_vector(const Scores<Keys>& scores, int64_t row, const SoftmaxRows& state, uint16_t* p) {
  const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const __m512 old_max = _mm512_loadu_ps(state.max + row);
  __m512 max = scores.max(old_max);
  // softmax::safe_max
  const __m512 base =
      _mm512_mask_mov_ps(max, _mm512_cmp_ps_mask(max, lowest, _CMP_EQ_OQ), _mm512_setzero_ps());
  const __m512 sum = scores.weigh(base, p);
  // A maximum of NaN stays, whatever comes after it. A sum is NaN where this tile has a NaN or +inf among its
  // scores; only the first of the two makes the maximum NaN.
  __mmask16 nans = _mm512_cmp_ps_mask(old_max, old_max, _CMP_UNORD_Q);
  if (_mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0) nans |= scores.nans();
  max = _mm512_mask_mov_ps(max, nans, _mm512_set1_ps(std::numeric_limits<float>::quiet_NaN()));
  const __m512 rescale = exp_of(_mm512_sub_ps(old_max, base));
  _mm512_storeu_ps(state.max + row, max);
  _mm512_storeu_ps(state.sum + row, _mm512_fmadd_ps(_mm512_loadu_ps(state.sum + row), rescale, sum));
  _mm512_storeu_ps(state.rescale + row, rescale);
}

TW_BF16 void softmax_tile(float* s, int64_t keys, int64_t rows, const SoftmaxRows& state, void* p) {
  for (int64_t row = 0; row < rows; row += kRegisterRows) {
    const __m512 scale = _mm512_loadu_ps(state.scale + row);
    auto* out = static_cast<uint16_t*>(p) + row / kRegisterRows * registers_of(keys) * kRegisterElements;
    if (state.first == nullptr) {
      softmax_vector(Scores<AllKeys>{s + row, rows, keys, scale, {}}, row, state, out);
    } else {
      const KeyLimits limits{_mm512_loadu_si512(state.first + row), _mm512_loadu_si512(state.last + row)};
      softmax_vector(Scores<KeyLimits>{s + row, rows, keys, scale, limits}, row, state, out);
    }
  }
}

size_t p_bytes(int64_t keys, int64_t rows) {
  return static_cast<size_t>(rows / kRegisterRows * registers_of(keys) * kRegisterBytes);
}

}  // namespace

const SoftmaxOps* bf16_softmax_ops() {
  static constexpr SoftmaxOps kOps = {softmax_tile, p_bytes};
  return &kOps;
}

}  // namespace tilewise::cpu

#else
namespace tilewise::cpu {
const SoftmaxOps* bf16_softmax_ops() { return nullptr; }
}  // namespace tilewise::cpu
#endif
