// What formats/record.h says of a record, worked out for raw rows: a token's planes one after another.
#pragma once

#include <cstdint>

#include "formats/record.h"

namespace tilewise::cuda {

/// A plane of a token, in its page and in the raw row.
struct RawPlane {
  int64_t page_offset = 0;  // of the page's first token
  int32_t bytes = 0;        // of a token, a multiple of 8
  int32_t to = 0;           // in the raw row
};

/// Columns of one element type. The group of a scaled column is column >> group_shift.
struct RawSegment {
  formats::Element element{};
  formats::ScaleType scale = formats::ScaleType::kNone;
  int32_t from = 0;  // in the raw row
  int32_t first = 0;
  int32_t columns = 0;
};

struct RawLayout {
  int32_t num_planes = 0;
  RawPlane planes[formats::kMaxPlanes];
  int32_t num_segments = 0;
  RawSegment segments[formats::kMaxSegments];
  int32_t scales_from = 0;  // in the raw row
  int32_t group_shift = 0;
  bool scales_by_quarters = false;
};

/// For pages of `page` tokens.
inline RawLayout raw_layout(const formats::RecordSpec& spec, int64_t page) {
  RawLayout layout;
  layout.num_planes = spec.num_planes;
  int32_t before = 0;
  for (int32_t i = 0; i < spec.num_planes; ++i) {
    layout.planes[i] = {.page_offset = before * page, .bytes = spec.plane_bytes[i], .to = before};
    before += spec.plane_bytes[i];
  }
  layout.num_segments = spec.num_segments;
  for (int32_t i = 0; i < spec.num_segments; ++i) {
    const formats::Segment& segment = spec.segments[i];
    layout.segments[i] = {.element = segment.element,
                          .scale = segment.scaled ? spec.scales.type : formats::ScaleType::kNone,
                          .from = layout.planes[segment.plane].to + segment.offset,
                          .first = segment.first,
                          .columns = segment.columns};
  }
  layout.scales_from = layout.planes[spec.scales.plane].to + spec.scales.offset;
  while ((2 << layout.group_shift) <= spec.scales.group) ++layout.group_shift;
  layout.scales_by_quarters = spec.scales.order == formats::ScaleOrder::kByQuarters;
  return layout;
}

}  // namespace tilewise::cuda
