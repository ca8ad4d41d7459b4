// The gradient of the scores over a tile, left as the bf16 registers that are multiplied. Scores lie as
// [key][row]. By keys, a register row is 32 neighbouring rows of one key: two vectors, as they are computed.
// By rows it is 32 keys of one row: 16 x 16 transpositions, as in the softmax.
#include "cpu/tile/bf16.h"

#if defined(__x86_64__)
#include <algorithm>

#include "cpu/tile/bf16-inl.h"

namespace tilewise::cpu {
namespace {

/// 16 rows at one key.
struct Element {
  __m512 p;
  __m512 ds;
  __m512 value;  // P * dP
};

/// 16 rows of a tile; a half of the registers by keys may be past the last row: nothing is left of it.
template <class Keys>
struct GradientVector {
  const float* s;  // [count][ld]
  const float* dp;
  int64_t ld;
  int64_t count;
  __m512 scale;
  __m512 lse;
  __m512 delta;
  Keys keys;

  TW_BF16 Element at(int64_t key) const {
    if (key >= count) return {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    const __m512 x = _mm512_sub_ps(_mm512_mul_ps(_mm512_loadu_ps(s + key * ld), scale), lse);
    const __mmask16 seen = keys.at(key);
    const __m512 p = _mm512_maskz_mov_ps(seen, exp_of(x));
    const __m512 gain = _mm512_loadu_ps(dp + key * ld);
    const __m512 past = _mm512_sub_ps(gain, delta);
    return {p, _mm512_maskz_mov_ps(seen, _mm512_mul_ps(_mm512_mul_ps(p, past), scale)),
            _mm512_maskz_mul_ps(seen, p, gain)};
  }
};

AllKeys limits_of(const GradientRows&, int64_t, const AllKeys&) { return {}; }
TW_BF16 KeyLimits limits_of(const GradientRows& state, int64_t row, const KeyLimits&) {
  return {_mm512_loadu_si512(state.first + row), _mm512_loadu_si512(state.last + row)};
}

/// Where the registers of a tile begin.
struct Registers {
  uint16_t* p_keys;  // [keys / 16][registers_of(rows)][16 keys][32 rows]
  uint16_t* ds_keys;
  uint16_t* ds_rows;  // [rows / 16][registers_of(keys)][16 rows][32 keys]
};

template <class Keys, bool kValues>
TW_BF16 void gradient_tile_of(const float* s, const float* dp, int64_t count, int64_t rows, float score_scale,
                              const GradientRows& state, const Registers& to, float* key_sums) {
  const __m512 scale = _mm512_set1_ps(score_scale);
  const auto vector_at = [&](int64_t row) TW_BF16 {
    return GradientVector<Keys>{s + row,
                                dp + row,
                                rows,
                                row < rows ? count : 0,
                                scale,
                                row < rows ? _mm512_loadu_ps(state.lse + row) : _mm512_setzero_ps(),
                                row < rows ? _mm512_loadu_ps(state.delta + row) : _mm512_setzero_ps(),
                                limits_of(state, row < rows ? row : 0, Keys{})};
  };
  const int64_t row_registers = registers_of(rows);
  const int64_t key_registers = registers_of(count);
  for (int64_t row = 0; row < rows; row += kRegisterDepth) {
    const GradientVector<Keys> vectors[2] = {vector_at(row), vector_at(row + kRegisterRows)};
    __m512 values[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t k = 0; k < count; k += kRegisterDepth) {
      __m512i by_rows[2][kRegisterRows];
      for (int64_t i = 0; i < kRegisterRows; ++i) {
        Element even[2];
        Element odd[2];
        for (int half = 0; half < 2; ++half) {
          even[half] = vectors[half].at(k + 2 * i);
          odd[half] = vectors[half].at(k + 2 * i + 1);
          by_rows[half][i] = pair_of(even[half].ds, odd[half].ds);
          if constexpr (kValues) {
            values[half] = _mm512_add_ps(values[half], _mm512_add_ps(even[half].value, odd[half].value));
          }
        }
        for (int64_t key = k + 2 * i; key < std::min(k + 2 * i + 2, count); ++key) {
          const Element* element = key == k + 2 * i ? even : odd;
          const int64_t at = ((key / kRegisterRows * row_registers + row / kRegisterDepth) * kRegisterRows +
                              key % kRegisterRows) *
                             kRegisterDepth;
          _mm512_storeu_si512(to.p_keys + at, narrow(element[0].p, element[1].p));
          _mm512_storeu_si512(to.ds_keys + at, narrow(element[0].ds, element[1].ds));
          if (key_sums != nullptr) {
            key_sums[key] += _mm512_reduce_add_ps(_mm512_add_ps(element[0].p, element[1].p));
          }
        }
      }
      for (int64_t half = 0; half < 2 && row + half * kRegisterRows < rows; ++half) {
        transpose(by_rows[half]);
        uint16_t* out = to.ds_rows + ((row / kRegisterRows + half) * key_registers + k / kRegisterDepth) *
                                         kRegisterElements;
        for (int64_t i = 0; i < kRegisterRows; ++i) {
          _mm512_storeu_si512(out + i * kRegisterDepth, by_rows[half][i]);
        }
      }
    }
    if constexpr (kValues) {
      for (int64_t half = 0; half < 2 && row + half * kRegisterRows < rows; ++half) {
        _mm512_storeu_ps(state.values + row + half * kRegisterRows, values[half]);
      }
    }
  }
}

TW_BF16 void gradient_tile(float* s, float* dp, int64_t keys, int64_t rows, float scale,
                           const GradientRows& state, const GradientWeights& to, float* key_sums) {
  const Registers registers{static_cast<uint16_t*>(to.p_keys), static_cast<uint16_t*>(to.ds_keys),
                            static_cast<uint16_t*>(to.ds_rows)};
  auto* const whole =
      state.values == nullptr ? gradient_tile_of<AllKeys, false> : gradient_tile_of<AllKeys, true>;
  auto* const limited =
      state.values == nullptr ? gradient_tile_of<KeyLimits, false> : gradient_tile_of<KeyLimits, true>;
  auto* const tile = state.first == nullptr ? whole : limited;
  tile(s, dp, keys, rows, scale, state, registers, key_sums);
}

size_t keys_bytes(int64_t keys, int64_t rows) {
  return static_cast<size_t>((keys + kRegisterRows - 1) / kRegisterRows * registers_of(rows)) *
         kRegisterBytes;
}

size_t rows_bytes(int64_t keys, int64_t rows) {
  return static_cast<size_t>(rows / kRegisterRows * registers_of(keys)) * kRegisterBytes;
}

}  // namespace

const GradientOps* bf16_gradient_ops() {
  static constexpr GradientOps kOps = {gradient_tile, keys_bytes, rows_bytes};
  return &kOps;
}

}  // namespace tilewise::cpu

#else
namespace tilewise::cpu {
const GradientOps* bf16_gradient_ops() { return nullptr; }
}  // namespace tilewise::cpu
#endif
