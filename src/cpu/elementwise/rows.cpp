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
// Eight lanes at most: every length here is a multiple of eight, and rows are short.
using D = hn::CappedTag<float, 8>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

void widen(const void* from, DType type, int64_t n, float* to) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> dh;
  if (type == DType::kFP32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    V x = hn::Zero(d);
    if (type == DType::kBF16) {
      x = load_bf16(d, static_cast<const BF16*>(from) + i);
    } else if (type == DType::kFP16) {
      x = hn::PromoteTo(d, hn::LoadU(dh, static_cast<const hwy::float16_t*>(from) + i));
    } else {
      x = e4m3_value(d, load_bytes(d, static_cast<const uint8_t*>(from) + i));
    }
    hn::StoreU(x, d, to + i);
  }
}

void narrow(const float* from, int64_t n, DType type, void* to) {
  const D d;
  if (type == DType::kFP32) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DType::kBF16) {
    for (int64_t i = 0; i < n; i += kLanes) store_bf16(d, hn::LoadU(d, from + i), static_cast<BF16*>(to) + i);
  } else {
    // Not Highway's conversion: without hardware for it, it does not round to nearest.
    for (int64_t i = 0; i < n; ++i) static_cast<FP16*>(to)[i].bits = f32_to_f16_bits(from[i]);
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
HWY_INLINE V fused_multiply_add(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float as[8], bs[8], cs[8];
  hn::Store(a, d, as);
  hn::Store(b, d, bs);
  hn::Store(c, d, cs);
  for (int64_t i = 0; i < kLanes; ++i) cs[i] = std::fma(as[i], bs[i], cs[i]);
  return hn::Load(d, cs);
#endif
}

void rotate(float* x, const float* cos_sin, bool back) {
  const D d;
  for (int64_t i = 0; i < kRopeDim / 2; i += kLanes) {
    V even, odd;
    hn::LoadInterleaved2(d, x + 2 * i, even, odd);
    const V cos = hn::LoadU(d, cos_sin + i);
    const V raw_sin = hn::LoadU(d, cos_sin + kRopeDim / 2 + i);
    const V sin = back ? hn::Neg(raw_sin) : raw_sin;
    const V new_even = fused_multiply_add(d, even, cos, hn::Neg(hn::Mul(odd, sin)));
    const V new_odd = fused_multiply_add(d, even, sin, hn::Mul(odd, cos));
    hn::StoreInterleaved2(new_even, new_odd, d, x + 2 * i);
  }
}

void round_to_bf16(float* x, int64_t n) {
  const D d;
  for (int64_t i = 0; i < n; i += kLanes) {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bf16_bits(d, hn::LoadU(d, x + i)))), d, x + i);
  }
}

void multiply(float* x, int64_t n, float factor) {
  const D d;
  for (int64_t i = 0; i < n; i += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
}

void merge(float* a, float weight_a, const float* b, float weight_b, int64_t n) {
  const D d;
  for (int64_t i = 0; i < n; i += kLanes) {
    const V scaled = hn::Mul(hn::LoadU(d, a + i), hn::Set(d, weight_a));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, b + i), hn::Set(d, weight_b), scaled), d, a + i);
  }
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
