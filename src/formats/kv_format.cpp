// The public queries about cache records, and compile-time checks of the table they come from.
#include "tilewise/kv_format.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "formats/record.h"

namespace tilewise {
namespace {

enum class Found { kByBytes, kByName, kByDtype };

struct Entry {
  Record record;
  const char* name;
  int64_t dim;  // 0: any of kFreeDims
  Found found;
  Record main;  // the main cache's record when this one is the extra cache's
};

constexpr Entry kEntries[] = {
#define TW_RECORD(name, enumerator, dim, found, main, planes, segments, scales) \
  {Record::enumerator, #name, dim, Found::found, Record::main},
#include "formats/records.def"
#undef TW_RECORD
};
constexpr int kNumRecords = static_cast<int>(std::size(kEntries));

constexpr int64_t kFreeDims[] = {576, 512};

constexpr auto kRecords = [] {
  std::array<Record, kNumRecords> records{};
  for (size_t i = 0; i < records.size(); ++i) records[i] = kEntries[i].record;
  return records;
}();

constexpr bool ids_are_positions() {
  for (int i = 0; i < kNumRecords; ++i) {
    if (static_cast<int>(kEntries[i].record) != i) return false;
  }
  return true;
}
static_assert(ids_are_positions(), "records.def must list the records in the order of their ids");

constexpr bool in_plane(const formats::RecordSpec& spec, int32_t plane, int32_t offset, int32_t bytes) {
  return plane >= 0 && plane < spec.num_planes && offset >= 0 && bytes > 0 &&
         offset + bytes <= spec.plane_bytes[plane];
}

// Segments cover the columns, scales cover the scaled segment, and all parts fill the planes.
constexpr bool fits_together(const formats::RecordSpec& spec) {
  int32_t columns = 0;
  int32_t bytes = 0;
  for (int32_t k = 0; k < spec.num_segments; ++k) {
    const formats::Segment& segment = spec.segments[k];
    const int32_t size = formats::segment_bytes(segment);
    const bool grouped = segment.scaled || segment.through_groups;
    if (segment.first != columns || !in_plane(spec, segment.plane, segment.offset, size)) return false;
    if (grouped && (spec.scales.group <= 0 || segment.columns % spec.scales.group != 0)) return false;
    if (segment.scaled && k != 0) return false;
    columns += segment.columns;
    bytes += size;
  }
  const formats::Scales& scales = spec.scales;
  if (scales.type != formats::ScaleType::kNone) {
    const int32_t count = formats::num_scales(spec);
    const int32_t size = count * formats::scale_bytes(scales.type) + scales.padding;
    if (!spec.segments[0].scaled || !in_plane(spec, scales.plane, scales.offset, size)) return false;
    if (scales.order == formats::ScaleOrder::kByQuarters && count != 32) return false;
    bytes += size;
  }
  return columns == spec.d && bytes == formats::token_bytes(spec);
}

constexpr bool table_fits_together() {
  for (const Entry& entry : kEntries) {
    for (int64_t d : kFreeDims) {
      if (!fits_together(formats::record_spec(entry.record, static_cast<int32_t>(d)))) return false;
    }
  }
  return true;
}
static_assert(table_fits_together(), "a line of records.def contradicts itself");

constexpr bool found_by_bytes_is_unique() {
  for (const Entry& a : kEntries) {
    for (const Entry& b : kEntries) {
      if (a.found != Found::kByBytes || b.found != Found::kByBytes || a.record == b.record) continue;
      const bool same_bytes = formats::token_bytes(formats::record_spec(a.record)) ==
                              formats::token_bytes(formats::record_spec(b.record));
      if (a.dim == b.dim && same_bytes) return false;
    }
  }
  return true;
}
static_assert(found_by_bytes_is_unique(), "two records of one size would be found by it: one must be named");

const Entry* find(Record record) {
  const auto id = static_cast<int32_t>(record);
  return id >= 0 && id < kNumRecords ? &kEntries[id] : nullptr;
}

bool holds(const Entry& entry, int64_t d) {
  if (entry.dim != 0) return entry.dim == d;
  for (int64_t free : kFreeDims) {
    if (free == d) return true;
  }
  return false;
}

}  // namespace

std::span<const Record> all_records() { return kRecords; }

const char* record_name(Record record) {
  if (record == Record::kAuto) return "auto";
  const Entry* entry = find(record);
  return entry != nullptr ? entry->name : "unknown";
}

std::optional<Record> record_from_name(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry.record;
  }
  return std::nullopt;
}

int64_t record_dim(Record record) {
  const Entry* entry = find(record);
  return entry != nullptr ? entry->dim : 0;
}

int64_t record_bytes(Record record, int64_t d) {
  const Entry* entry = find(record);
  if (entry == nullptr || !holds(*entry, d)) return 0;
  return formats::token_bytes(formats::record_spec(record, static_cast<int32_t>(d)));
}

std::optional<Record> infer_record(int64_t bytes, int64_t d) {
  for (const Entry& entry : kEntries) {
    if (entry.found == Found::kByBytes && holds(entry, d) && record_bytes(entry.record, d) == bytes) {
      return entry.record;
    }
  }
  return std::nullopt;
}

bool record_pair_allowed(Record main, Record extra) {
  const Entry* entry = find(extra);
  return entry != nullptr && entry->main == main;
}

}  // namespace tilewise
