// Quantising KV rows in Highway: per group the largest magnitude, the scale by the record's rule (scalar,
// from formats/codec.h), then the codes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/encode.cpp"
#include "cpu/targets.h"
// Second, before any other header of Highway:
#include <hwy/foreach_target.h>
// Then the rest.
#include <hwy/highway.h>

#include <cstring>

#include "cpu/elementwise/convert-inl.h"
#include "cpu/elementwise/encode.h"
#include "formats/codec.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// Groups have 16 columns or more: two vectors of at most eight fit the smallest one.
using D = hn::CappedTag<float, 8>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

using formats::Element;
using formats::RecordSpec;
using formats::Scales;
using formats::Segment;

// The stored scale of x [scales.group].
HWY_INLINE uint32_t stored_scale(const Scales& scales, const BF16* x) {
  const hn::CappedTag<uint16_t, 8> d16;
  // Magnitudes order as their bits do, with inf and NaN on top.
  auto largest = hn::Zero(d16);
  for (int64_t i = 0; i < scales.group; i += static_cast<int64_t>(hn::Lanes(d16))) {
    largest = hn::Max(largest, hn::And(hn::LoadU(d16, &x[i].bits), hn::Set(d16, uint16_t{0x7FFF})));
  }
  const float amax = bf16_bits_to_f32(hn::GetLane(hn::MaxOfLanes(d16, largest)));
  return f32_is_finite(amax) ? formats::quantised_scale(scales, amax) : formats::nan_scale(scales.type);
}

// Nearest even, saturating at 6; a value that rounds to zero keeps its sign but for -0.0 itself.
HWY_INLINE Bits<D> e2m1_codes(D d, hn::Vec<D> x) {
  const U32<D> du;
  const auto magnitude = hn::Abs(x);
  const auto one = hn::Set(du, 1u);
  auto code = hn::Zero(du);
  const auto count = [&](auto reached) {
    code = hn::Add(code, hn::IfThenElseZero(hn::RebindMask(du, reached), one));
  };
  count(hn::Gt(magnitude, hn::Set(d, 0.25f)));
  count(hn::Ge(magnitude, hn::Set(d, 0.75f)));
  count(hn::Gt(magnitude, hn::Set(d, 1.25f)));
  count(hn::Ge(magnitude, hn::Set(d, 1.75f)));
  count(hn::Gt(magnitude, hn::Set(d, 2.5f)));
  count(hn::Ge(magnitude, hn::Set(d, 3.5f)));
  count(hn::Gt(magnitude, hn::Set(d, 5.0f)));
  const auto sign = hn::IfThenElseZero(hn::RebindMask(du, hn::Lt(x, hn::Zero(d))), hn::Set(du, 8u));
  return hn::Or(code, sign);
}

// Codes of one vector under a scale; a NaN scale leaves only the sign bits.
HWY_INLINE Bits<D> element_codes(D d, Element element, const BF16* x, float scale) {
  const U32<D> du;
  const auto v = load_bf16(d, x);
  if (f32_is_nan(scale)) {
    const auto sign = hn::ShiftRight<31>(hn::BitCast(du, v));
    return element == Element::kE2m1 ? hn::ShiftLeft<3>(sign) : hn::ShiftLeft<7>(sign);
  }
  const auto ratio = hn::Div(v, hn::Set(d, scale));
  return element == Element::kE2m1 ? e2m1_codes(d, ratio) : e4m3_codes(d, ratio);
}

// Columns [first, first + n) of a segment under one scale; x and row are the segment's.
void encode_columns(const RecordSpec& spec, const Segment& segment, const BF16* x, int64_t first, int64_t n,
                    float scale, uint8_t* row) {
  const D d;
  const U32<D> du;
  if (segment.element == Element::kBf16 && !segment.through_groups) {
    std::memcpy(row + 2 * first, x + first, static_cast<size_t>(n) * sizeof(BF16));
    return;
  }
  for (int64_t i = first; i < first + n; i += kLanes) {
    if (segment.element == Element::kE4m3) {
      store_bytes(d, element_codes(d, Element::kE4m3, x + i, scale), row + i);
    } else if (segment.element == Element::kE2m1) {
      HWY_ALIGN uint32_t codes[8] = {};
      hn::Store(element_codes(d, Element::kE2m1, x + i, scale), du, codes);
      for (int64_t j = 0; j < kLanes; j += 2)
        row[(i + j) / 2] = static_cast<uint8_t>(codes[j] | codes[j + 1] << 4);
    } else {
      const Element coarse = spec.segments[0].element;
      const auto codes = element_codes(d, coarse, x + i, scale);
      const auto value = coarse == Element::kE2m1 ? e2m1_value(d, codes) : e4m3_value(d, codes);
      store_bf16(d, hn::Mul(value, hn::Set(d, scale)), reinterpret_cast<BF16*>(row + 2 * i));
    }
  }
}

void encode_record(const RecordSpec& spec, const BF16* x, uint8_t* page, int64_t page_size, int64_t offset) {
  const Scales& scales = spec.scales;
  uint8_t* scale_row = formats::plane_row(page, page_size, spec, scales.plane, offset);
  for (int32_t k = 0; k < spec.num_segments; ++k) {
    const Segment& segment = spec.segments[k];
    const BF16* columns = x + segment.first;
    uint8_t* row = formats::plane_row(page, page_size, spec, segment.plane, offset) + segment.offset;
    if (!segment.scaled && !segment.through_groups) {
      encode_columns(spec, segment, columns, 0, segment.columns, 1.0f, row);
      continue;
    }
    for (int32_t s = 0; s < segment.columns / scales.group; ++s) {
      const int32_t first = s * scales.group;
      const uint32_t stored = stored_scale(scales, columns + first);
      if (segment.scaled) {
        std::memcpy(scale_row + formats::scale_offset(scales, s), &stored,
                    static_cast<size_t>(formats::scale_bytes(scales.type)));
      }
      encode_columns(spec, segment, columns, first, scales.group, formats::scale_value(scales.type, stored),
                     row);
    }
  }
  if (scales.padding > 0) {
    const int32_t end = scales.offset + formats::num_scales(spec) * formats::scale_bytes(scales.type);
    std::memset(scale_row + end, 0, static_cast<size_t>(scales.padding));
  }
}

const EncodeOps kEncodeOps = {encode_record};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cpu {

const TargetTables<EncodeOps>& encode_ops() {
  static const TargetTables<EncodeOps> tables = TW_TARGET_TABLES(kEncodeOps);
  return tables;
}

}  // namespace tilewise::cpu
#endif
