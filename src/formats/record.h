// The grammar of cache records: plain data that says where a token's bytes lie in a page and what they mean.
// The records themselves are the lines of records.def.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "tilewise/kv_format.h"

namespace tilewise::formats {

enum class Element : int8_t { kE4m3, kE2m1, kBf16 };
enum class ScaleType : int8_t { kNone, kFp32, kUe8m0, kE4m3 };

// Where the scale of group s lies: place s, or place 8 * (s & 3) + (s >> 2), defined for 32 groups: the first
// quarter holds every fourth scale.
enum class ScaleOrder : int8_t { kLinear, kByQuarters };

// How the quantiser chooses a group's scale from its largest magnitude:
//   kPow2         2^ceil(log2(max(amax / 448, 1e-4)))
//   kE4m3Nearest  e4m3(clamp(amax / 6, 2^-9, 448)), to nearest
//   kE4m3Up       the same, rounded up
enum class ScaleRule : int8_t { kNone, kPow2, kE4m3Nearest, kE4m3Up };

// A run of columns stored side by side in one plane.
struct Segment {
  Element element;
  bool scaled;          // the value is element * scale of its group
  bool through_groups;  // written as the values that quantising in groups would give, read as it is
  int32_t plane;
  int32_t offset;  // bytes from the start of the plane's row
  int32_t first;   // column
  int32_t columns;
};

struct Scales {
  ScaleType type;
  ScaleOrder order;
  ScaleRule rule;
  int32_t group;  // columns that share a scale
  int32_t plane;
  int32_t offset;   // bytes from the start of the plane's row
  int32_t padding;  // bytes behind the scales, written 0 and never read
};

inline constexpr int kMaxPlanes = 3;
inline constexpr int kMaxSegments = 2;

// The first segment is the scaled one where a record has scales; groups count from its first column.
struct RecordSpec {
  Record record;
  int32_t d;
  int32_t num_planes;
  int32_t plane_bytes[kMaxPlanes];  // bytes a token
  int32_t num_segments;
  Segment segments[kMaxSegments];
  Scales scales;
};

TW_HD constexpr int32_t segment_bytes(const Segment& segment) {
  switch (segment.element) {
    case Element::kE4m3:
      return segment.columns;
    case Element::kE2m1:
      return segment.columns / 2;
    case Element::kBf16:
      return segment.columns * 2;
  }
  return 0;
}

TW_HD constexpr int32_t scale_bytes(ScaleType type) {
  return type == ScaleType::kNone ? 0 : type == ScaleType::kFp32 ? 4 : 1;
}

TW_HD constexpr int32_t num_scales(const RecordSpec& spec) {
  return spec.scales.type == ScaleType::kNone ? 0 : spec.segments[0].columns / spec.scales.group;
}

// Bytes from the start of the plane's row to the scale of group s.
TW_HD constexpr int32_t scale_offset(const Scales& scales, int32_t s) {
  const int32_t place = scales.order == ScaleOrder::kByQuarters ? 8 * (s & 3) + (s >> 2) : s;
  return scales.offset + place * scale_bytes(scales.type);
}

TW_HD constexpr int32_t token_bytes(const RecordSpec& spec) {
  int32_t bytes = 0;
  for (int32_t p = 0; p < spec.num_planes; ++p) bytes += spec.plane_bytes[p];
  return bytes;
}

// Where the row of token `offset_in_page` begins in a plane. Byte is uint8_t or const uint8_t; page_size is
// in tokens.
template <typename Byte>
TW_HD constexpr Byte* plane_row(Byte* page_base, int64_t page_size, const RecordSpec& spec, int plane,
                                int64_t offset_in_page) {
  int64_t before = 0;
  for (int p = 0; p < plane; ++p) before += spec.plane_bytes[p];
  return page_base + before * page_size + offset_in_page * spec.plane_bytes[plane];
}

// The words of records.def.
namespace grammar {

struct Planes {
  int32_t count;
  int32_t bytes[kMaxPlanes];
};

struct Segments {
  int32_t count;
  Segment list[kMaxSegments];
};

TW_HD constexpr Planes planes(int32_t first) { return {1, {first, 0, 0}}; }
TW_HD constexpr Planes planes(int32_t first, int32_t second) { return {2, {first, second, 0}}; }
TW_HD constexpr Planes planes(int32_t first, int32_t second, int32_t third) {
  return {3, {first, second, third}};
}

TW_HD constexpr Segment e4m3(int32_t plane, int32_t offset, int32_t columns) {
  return {Element::kE4m3, true, false, plane, offset, 0, columns};
}
TW_HD constexpr Segment unscaled_e4m3(int32_t plane, int32_t offset, int32_t columns) {
  return {Element::kE4m3, false, false, plane, offset, 0, columns};
}
TW_HD constexpr Segment e2m1(int32_t plane, int32_t offset, int32_t columns) {
  return {Element::kE2m1, true, false, plane, offset, 0, columns};
}
TW_HD constexpr Segment bf16(int32_t plane, int32_t offset, int32_t columns) {
  return {Element::kBf16, false, false, plane, offset, 0, columns};
}
TW_HD constexpr Segment bf16_through_groups(int32_t plane, int32_t offset, int32_t columns) {
  return {Element::kBf16, false, true, plane, offset, 0, columns};
}

TW_HD constexpr Segments segments(Segment only) { return {1, {only, Segment{}}}; }
TW_HD constexpr Segments segments(Segment first, Segment second) {
  second.first = first.columns;
  return {2, {first, second}};
}

TW_HD constexpr Scales no_scales() {
  return {ScaleType::kNone, ScaleOrder::kLinear, ScaleRule::kNone, 0, 0, 0, 0};
}
TW_HD constexpr Scales fp32_scales(int32_t group, int32_t plane, int32_t offset) {
  return {ScaleType::kFp32, ScaleOrder::kLinear, ScaleRule::kPow2, group, plane, offset, 0};
}
TW_HD constexpr Scales ue8m0_scales(int32_t group, int32_t plane, int32_t offset, int32_t padding = 0) {
  return {ScaleType::kUe8m0, ScaleOrder::kLinear, ScaleRule::kPow2, group, plane, offset, padding};
}
TW_HD constexpr Scales e4m3_scales(int32_t group, int32_t plane, int32_t offset, int32_t padding = 0) {
  return {ScaleType::kE4m3, ScaleOrder::kLinear, ScaleRule::kE4m3Nearest, group, plane, offset, padding};
}
TW_HD constexpr Scales e4m3_up_scales_by_quarters(int32_t group, int32_t plane, int32_t offset) {
  return {ScaleType::kE4m3, ScaleOrder::kByQuarters, ScaleRule::kE4m3Up, group, plane, offset, 0};
}

TW_HD constexpr RecordSpec record(Record id, int32_t d, Planes p, Segments s, Scales scales) {
  return {id, d, p.count, {p.bytes[0], p.bytes[1], p.bytes[2]}, s.count, {s.list[0], s.list[1]}, scales};
}

}  // namespace grammar

// The layout of a record. `d` is read by the records that hold any head size (bf16) and ignored by the
// others. A value that is no record gives a spec without planes.
TW_HD constexpr RecordSpec record_spec(Record id, int32_t d = 0) {
  using namespace grammar;
  switch (id) {
#define TW_RECORD(name, enumerator, dim, found, main, planes, segments, scales) \
  case Record::enumerator:                                                      \
    return record(Record::enumerator, dim != 0 ? dim : d, planes, segments, scales);
#include "formats/records.def"
#undef TW_RECORD
    case Record::kAuto:
      break;
  }
  return RecordSpec{};
}

}  // namespace tilewise::formats
