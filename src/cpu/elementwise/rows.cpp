// What happens to single rows of Q and O, in Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/rows.cpp"
#include "cpu/targets.h"
// Second, before any other header of Highway:
#include <hwy/foreach_target.h>
// Then the rest.
#include <hwy/highway.h>

#include <cmath>
#include <cstring>

#include "cpu/elementwise/convert-inl.h"
#include "cpu/elementwise/rows.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// Whole vectors for lengths that are multiples of 16; others end in eights.
using D = hn::CappedTag<float, 16>;
using DEight = hn::CappedTag<float, 8>;
using V = hn::Vec<D>;
using VEight = hn::Vec<DEight>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
constexpr int64_t kLanesOfEight = static_cast<int64_t>(hn::MaxLanes(DEight()));

// step(tag, i) for every vector of n elements.
template <class Step>
HWY_INLINE void for_vectors(int64_t n, const Step& step) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) step(D(), i);
  if constexpr (kLanes > 8) {
    if (i < n) step(DEight(), i);
  }
}

void widen(const void* from, DType type, int64_t n, float* to) {
  if (type == DType::kFP32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DType::kBF16) {
    const auto* bf16 = static_cast<const BF16*>(from);
    for_vectors(n, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(load_bf16(d, bf16 + i), d, to + i); });
  } else if (type == DType::kFP16) {
    const auto* fp16 = static_cast<const FP16*>(from);
    for_vectors(n, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(load_f16(d, fp16 + i), d, to + i); });
  } else {
    const auto* codes = static_cast<const uint8_t*>(from);
    for_vectors(n, [&](auto d, int64_t i)
                       HWY_ATTR { hn::StoreU(e4m3_value(d, load_bytes(d, codes + i)), d, to + i); });
  }
}

void narrow(const float* from, int64_t n, DType type, void* to) {
  if (type == DType::kFP32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DType::kBF16) {
    auto* bf16 = static_cast<BF16*>(to);
    for_vectors(n, [&](auto d, int64_t i) HWY_ATTR { store_bf16(d, hn::LoadU(d, from + i), bf16 + i); });
  } else {
    auto* fp16 = static_cast<FP16*>(to);
    for_vectors(n, [&](auto d, int64_t i) HWY_ATTR { store_f16(d, hn::LoadU(d, from + i), fp16 + i); });
  }
}

void unpermute(const BF16* token, int64_t h_q, int64_t head, float* to) {
  const D d;
  for (int64_t c = 0; c < kFusedDim; c += 16) {
    const BF16* from = token + c * h_q + head * 16;
    for (int64_t i = 0; i < 16; i += kLanes) hn::StoreU(load_bf16(d, from + i), d, to + c + i);
  }
}

float sum_of_squares(const float* x, int64_t n) {
  const D d;
  V sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kLanes) {
    const V v = hn::LoadU(d, x + i);
    sum = hn::MulAdd(v, v, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// fma(a, b, c) with one rounding also where the instruction set has none.
HWY_INLINE VEight fused_multiply_add(DEight d, VEight a, VEight b, VEight c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float as[8], bs[8], cs[8];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(c, d, cs);
  for (int64_t i = 0; i < kLanesOfEight; ++i) cs[i] = std::fma(as[i], bs[i], cs[i]);
  return hn::Load(d, cs);
#endif
}

// Wider vectors lose more by taking pairs apart than they gain.
void rotate(float* x, const float* cos_sin, bool back) {
  const DEight d;
  for (int64_t i = 0; i < kRopeDim / 2; i += kLanesOfEight) {
    VEight even, odd;
    hn::LoadInterleaved2(d, x + 2 * i, even, odd);
    const VEight cos = hn::LoadU(d, cos_sin + i);
    const VEight raw_sin = hn::LoadU(d, cos_sin + kRopeDim / 2 + i);
    const VEight sin = back ? hn::Neg(raw_sin) : raw_sin;
    const VEight new_even = fused_multiply_add(d, even, cos, hn::Neg(hn::Mul(odd, sin)));
    const VEight new_odd = fused_multiply_add(d, even, sin, hn::Mul(odd, cos));
    hn::StoreInterleaved2(new_even, new_odd, d, x + 2 * i);
  }
}

void round_to_bf16(float* x, int64_t n) {
  for_vectors(n, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bf16_bits(d, hn::LoadU(d, x + i)))), d, x + i);
  });
}

void multiply(float* x, int64_t n, float factor) {
  for_vectors(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto product = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor));
    hn::StoreU(product, d, x + i);
  });
}

void merge(float* a, float weight_a, const float* b, float weight_b, int64_t n) {
  for_vectors(n, [&](auto d, int64_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, a + i), hn::Set(d, weight_a));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, b + i), hn::Set(d, weight_b), scaled), d, a + i);
  });
}

void cast_fp8(const float* x, uint8_t* codes, int64_t code_stride, uint8_t* exponents) {
  const D d;
  for (int64_t group = 0; group < kCastGroups; ++group) {
    const float* from = x + group * kCastGroup;
    V largest = hn::Zero(d);
    for (int64_t i = 0; i < kCastGroup; i += kLanes) {
      const V magnitude = hn::Abs(hn::LoadU(d, from + i));
      // Not Max: a NaN element must not decide its group's exponent.
      largest = hn::IfThenElse(hn::Gt(magnitude, largest), magnitude, largest);
    }
    const float amax = hn::GetLane(hn::MaxOfLanes(d, largest));
    const uint8_t exponent = pow2_ceil_to_ue8m0((amax > 1e-4f ? amax : 1e-4f) / 448.0f);
    exponents[group] = exponent;
    // 2^(127 - exponent) is 1 / scale, exactly.
    const V inverse = hn::Set(d, ue8m0_to_f32(static_cast<uint8_t>(254 - exponent)));
    for (int64_t i = 0; i < kCastGroup; i += kLanes) {
      store_bytes(d, e4m3_codes(d, hn::Mul(hn::LoadU(d, from + i), inverse)),
                  codes + group * code_stride + i);
    }
  }
}

const RowOps kRowOps = {widen,         narrow,   unpermute, sum_of_squares, rotate,
                        round_to_bf16, multiply, merge,     cast_fp8};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cpu {

const TargetTables<RowOps>& row_ops() {
  static const TargetTables<RowOps> tables = TW_TARGET_TABLES(kRowOps);
  return tables;
}

}  // namespace tilewise::cpu
#endif
