// Writes and reads one cached token, scalar: the definition of every record's bytes. Faster code (SIMD, GPU)
// must give the same bits. Divisions are IEEE divisions: these files must not be compiled with fast math.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/numeric.h"
#include "formats/record.h"

namespace tilewise::formats {

// Little-endian and byte by byte: a row may begin at any address.
TW_HD constexpr void store_u16(uint8_t* p, uint16_t v) {
  p[0] = static_cast<uint8_t>(v);
  p[1] = static_cast<uint8_t>(v >> 8);
}
TW_HD constexpr uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }

TW_HD constexpr void store_u32(uint8_t* p, uint32_t v) {
  store_u16(p, static_cast<uint16_t>(v));
  store_u16(p + 2, static_cast<uint16_t>(v >> 16));
}
TW_HD constexpr uint32_t load_u32(const uint8_t* p) {
  return load_u16(p) | (static_cast<uint32_t>(load_u16(p + 2)) << 16);
}

TW_HD constexpr float scale_value(ScaleType type, uint32_t stored) {
  switch (type) {
    case ScaleType::kFp32:
      return bits_to_f32(stored);
    case ScaleType::kUe8m0:
      return ue8m0_to_f32(static_cast<uint8_t>(stored));
    case ScaleType::kE4m3:
      return e4m3_to_f32(static_cast<uint8_t>(stored));
    case ScaleType::kNone:
      break;
  }
  return 1.0f;
}

TW_HD constexpr uint32_t nan_scale(ScaleType type) {
  return type == ScaleType::kFp32 ? kF32Nan : type == ScaleType::kUe8m0 ? kUe8m0Nan : kE4m3Nan;
}

// The scale of a group as it is stored (fp32 bits or a byte), from its largest magnitude, which is finite.
TW_HD constexpr uint32_t quantised_scale(const Scales& scales, float amax) {
  if (scales.rule == ScaleRule::kPow2) {
    const float least = amax / 448.0f;
    const float wanted = least > 1e-4f ? least : 1e-4f;
    return scales.type == ScaleType::kFp32 ? f32_to_bits(pow2_ceil(wanted)) : pow2_ceil_to_ue8m0(wanted);
  }
  const float least = amax / 6.0f;
  const float wanted = least < 0x1p-9f ? 0x1p-9f : least > 448.0f ? 448.0f : least;
  return scales.rule == ScaleRule::kE4m3Up ? f32_to_e4m3_up(wanted) : f32_to_e4m3(wanted);
}

// The scale of the group x[0, scales.group) as it is stored; a NaN or an infinity among x makes it NaN.
TW_HD constexpr uint32_t group_scale(const Scales& scales, const BF16* x) {
  uint32_t largest = 0;
  for (int32_t i = 0; i < scales.group; ++i) {
    const uint32_t a = f32_magnitude_bits(bf16_bits_to_f32(x[i].bits));
    largest = a > largest ? a : largest;
  }
  return largest < kF32Inf ? quantised_scale(scales, bits_to_f32(largest)) : nan_scale(scales.type);
}

// The code of x under a scale. A NaN scale leaves only the sign bit.
TW_HD constexpr uint8_t element_code(Element element, BF16 x, float scale) {
  const float v = bf16_bits_to_f32(x.bits);
  if (f32_is_nan(scale)) return static_cast<uint8_t>((x.bits >> 15) << (element == Element::kE2m1 ? 3 : 7));
  return element == Element::kE2m1 ? f32_to_e2m1(v / scale) : f32_to_e4m3(v / scale);
}

// The value of a code, rounded to bf16. A subnormal product is kept, NaN is always the same NaN.
TW_HD constexpr BF16 element_value(Element element, uint8_t code, float scale) {
  return {f32_to_bf16_bits((element == Element::kE2m1 ? e2m1_to_f32(code) : e4m3_to_f32(code)) * scale)};
}

// Writes columns [first, first + n) of a segment, n even, under one scale. x and row are the segment's.
TW_HD constexpr void encode_columns(const RecordSpec& spec, const Segment& segment, const BF16* x,
                                    int32_t first, int32_t n, float scale, uint8_t* row) {
  for (int32_t i = first; i < first + n; ++i) {
    if (segment.element == Element::kBf16) {
      BF16 v = x[i];
      if (segment.through_groups) {
        const Element coarse = spec.segments[0].element;
        v = element_value(coarse, element_code(coarse, v, scale), scale);
      }
      store_u16(row + 2 * i, v.bits);
    } else if (segment.element == Element::kE4m3) {
      row[i] = element_code(segment.element, x[i], scale);
    } else if (i % 2 == 0) {
      row[i / 2] = static_cast<uint8_t>(element_code(segment.element, x[i], scale) |
                                        element_code(segment.element, x[i + 1], scale) << 4);
    }
  }
}

// A token is written and read in units that do not depend on each other: the groups of each segment (all of a
// segment that has none is cut like the others), and the padding behind the scales.
inline constexpr int32_t kPlainUnit = 16;  // columns of a unit where nothing is scaled

TW_HD constexpr int32_t unit_columns(const RecordSpec& spec, const Segment& segment) {
  return segment.scaled || segment.through_groups ? spec.scales.group : kPlainUnit;
}
TW_HD constexpr int32_t units_of(const RecordSpec& spec, const Segment& segment) {
  const int32_t n = unit_columns(spec, segment);
  return (segment.columns + n - 1) / n;
}
TW_HD constexpr int32_t num_units(const RecordSpec& spec) {
  int32_t units = 0;
  for (int32_t k = 0; k < spec.num_segments; ++k) units += units_of(spec, spec.segments[k]);
  return units;
}

// A unit's segment and columns [first, first + n) in it.
struct UnitPlace {
  int32_t segment;
  int32_t first;
  int32_t n;
};
TW_HD constexpr UnitPlace unit_place(const RecordSpec& spec, int32_t unit) {
  int32_t k = 0;
  while (k + 1 < spec.num_segments && unit >= units_of(spec, spec.segments[k])) {
    unit -= units_of(spec, spec.segments[k]);
    ++k;
  }
  const int32_t step = unit_columns(spec, spec.segments[k]);
  const int32_t left = spec.segments[k].columns - unit * step;
  return {k, unit * step, left < step ? left : step};
}

// Writes one unit of a token, x [d]. page_base is the page's first byte, page its size in tokens, offset the
// token's place in it.
TW_HD constexpr void encode_unit(const RecordSpec& spec, const BF16* x, uint8_t* page_base, int64_t page,
                                 int64_t offset, int32_t unit) {
  const Scales& scales = spec.scales;
  const UnitPlace at = unit_place(spec, unit);
  const Segment& segment = spec.segments[at.segment];
  const BF16* columns = x + segment.first;
  uint8_t* row = plane_row(page_base, page, spec, segment.plane, offset) + segment.offset;
  float scale = 1.0f;
  if (segment.scaled || segment.through_groups) {
    const uint32_t stored = group_scale(scales, columns + at.first);
    scale = scale_value(scales.type, stored);
    if (segment.scaled) {
      uint8_t* place = plane_row(page_base, page, spec, scales.plane, offset) +
                       scale_offset(scales, at.first / scales.group);
      if (scales.type == ScaleType::kFp32) {
        store_u32(place, stored);
      } else {
        *place = static_cast<uint8_t>(stored);
      }
    }
  }
  encode_columns(spec, segment, columns, at.first, at.n, scale, row);
}

TW_HD constexpr void encode_padding(const RecordSpec& spec, uint8_t* page_base, int64_t page,
                                    int64_t offset) {
  uint8_t* end = plane_row(page_base, page, spec, spec.scales.plane, offset) + spec.scales.offset +
                 num_scales(spec) * scale_bytes(spec.scales.type);
  for (int32_t i = 0; i < spec.scales.padding; ++i) end[i] = 0;
}

// Quantises one token and writes every byte of it, padding too.
TW_HD constexpr void encode_row(const RecordSpec& spec, const BF16* x, uint8_t* page_base, int64_t page,
                                int64_t offset) {
  for (int32_t unit = 0; unit < num_units(spec); ++unit) {
    encode_unit(spec, x, page_base, page, offset, unit);
  }
  if (spec.scales.padding > 0) encode_padding(spec, page_base, page, offset);
}

// Reads one unit of a token into out [d].
TW_HD constexpr void decode_unit(const RecordSpec& spec, const uint8_t* page_base, int64_t page,
                                 int64_t offset, int32_t unit, BF16* out) {
  const Scales& scales = spec.scales;
  const UnitPlace at = unit_place(spec, unit);
  const Segment& segment = spec.segments[at.segment];
  const uint8_t* row = plane_row(page_base, page, spec, segment.plane, offset) + segment.offset;
  float scale = 1.0f;
  if (segment.scaled) {
    const uint8_t* place = plane_row(page_base, page, spec, scales.plane, offset) +
                           scale_offset(scales, at.first / scales.group);
    scale = scale_value(scales.type, scales.type == ScaleType::kFp32 ? load_u32(place) : *place);
  }
  for (int32_t i = at.first; i < at.first + at.n; ++i) {
    BF16& value = out[segment.first + i];
    if (segment.element == Element::kBf16) {
      value.bits = load_u16(row + 2 * i);
    } else if (segment.element == Element::kE4m3) {
      value = element_value(segment.element, row[i], scale);
    } else {
      value = element_value(segment.element, static_cast<uint8_t>(row[i / 2] >> (4 * (i % 2))), scale);
    }
  }
}

// Reads one token into out [d].
TW_HD constexpr void decode_row(const RecordSpec& spec, const uint8_t* page_base, int64_t page,
                                int64_t offset, BF16* out) {
  for (int32_t unit = 0; unit < num_units(spec); ++unit) {
    decode_unit(spec, page_base, page, offset, unit, out);
  }
}

}  // namespace tilewise::formats
