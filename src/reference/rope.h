// What the fused operators do around the attention: the norm's factor, the rotation of q, the rotation back.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/numeric.h"
#include "reference/views.h"

namespace tilewise::reference {

inline constexpr int64_t kFusedDim = 512;
inline constexpr int64_t kRopePairs = 32;  // columns (448, 449), (450, 451), ...
inline constexpr int64_t kRopeFirst = kFusedDim - 2 * kRopePairs;

struct Rotation {
  std::array<float, kRopePairs> cos{};
  std::array<float, kRopePairs> sin{};
};

// The angles of a token: cos_sin [max_pos, 64] holds the cosines, then the sines of a position.
inline Rotation rotation_of(const TensorView& positions, const TensorView& cos_sin, int64_t token) {
  const int64_t position = std::clamp<int64_t>(int_at(positions, token), 0, cos_sin.size(0) - 1);
  Rotation rotation;
  read_floats(cos_sin, position * cos_sin.stride(0), kRopePairs, rotation.cos.data());
  read_floats(cos_sin, position * cos_sin.stride(0) + kRopePairs, kRopePairs, rotation.sin.data());
  return rotation;
}

// In the fp32 steps that the contract prescribes, then rounded to bfloat16.
inline void rotate_query(const Rotation& rotation, float* q) {
  for (int64_t i = 0; i < kRopePairs; ++i) {
    const float x0 = q[kRopeFirst + 2 * i];
    const float x1 = q[kRopeFirst + 2 * i + 1];
    const float cosine = rotation.cos[static_cast<size_t>(i)];
    const float sine = rotation.sin[static_cast<size_t>(i)];
    const float even = std::fma(x0, cosine, -(x1 * sine));
    const float odd = std::fma(x0, sine, x1 * cosine);
    q[kRopeFirst + 2 * i] = bf16_bits_to_f32(f32_to_bf16_bits(even));
    q[kRopeFirst + 2 * i + 1] = bf16_bits_to_f32(f32_to_bf16_bits(odd));
  }
}

// The conjugate rotation of the last columns of an output row.
template <class Real>
void rotate_back(const Rotation& rotation, Real* out) {
  for (int64_t i = 0; i < kRopePairs; ++i) {
    const Real x0 = out[kRopeFirst + 2 * i];
    const Real x1 = out[kRopeFirst + 2 * i + 1];
    const Real cosine = rotation.cos[static_cast<size_t>(i)];
    const Real sine = rotation.sin[static_cast<size_t>(i)];
    out[kRopeFirst + 2 * i] = x0 * cosine + x1 * sine;
    out[kRopeFirst + 2 * i + 1] = x1 * cosine - x0 * sine;
  }
}

// 1 / RMS of a head's raw q.
template <class Real>
Real rms_factor(const float* q, int64_t d, float eps) {
  Real squares = 0;
  for (int64_t c = 0; c < d; ++c) squares += static_cast<Real>(q[c]) * static_cast<Real>(q[c]);
  return 1 / std::sqrt(squares / static_cast<Real>(d) + static_cast<Real>(eps));
}

}  // namespace tilewise::reference
