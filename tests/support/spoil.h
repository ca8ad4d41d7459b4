// Spoils everything that a call may not depend on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cases/data.h"
#include "cases/work.h"
#include "formats/record.h"
#include "tests/support/patterns.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {

/// Which columns of cached rows: those that are keys and values, or (where a record has any) keys alone.
enum class Columns { kAll, kValues, kKeysOnly };

inline constexpr int64_t kValueColumns = 512;

/// A paged cache of records, or plain rows seen as pages of one.
struct CacheView {
  TensorView view;
  Record record = Record::kBf16;
  int64_t d = 0;

  bool paged() const { return view.rank() == 4; }
  int64_t page() const { return paged() ? view.size(1) : 1; }
  int64_t slots() const { return view.size(0) * page(); }
  uint8_t* block(int64_t slot) const {
    return view.data_as<uint8_t>() + slot / page() * view.stride(0) * size_of(view.dtype());
  }
};

inline CacheView cache_view(const cases::CaseData& data, const std::string& name) {
  const cases::Case& c = data.what();
  const bool records = cases::has_cache_records(c.op);
  const Record record = !records ? Record::kBf16 : name == "extra_cache" ? c.extra->record : c.main.record;
  return {data.view(name), record, c.d_qk};
}

inline DType storage_of(formats::Element element) {
  switch (element) {
    case formats::Element::kE4m3:
      return DType::kE4M3;
    case formats::Element::kE2m1:
      return DType::kE2M1x2;
    case formats::Element::kBf16:
      return DType::kBF16;
  }
  return DType::kUnknown;
}

inline DType storage_of(formats::ScaleType type) {
  switch (type) {
    case formats::ScaleType::kFp32:
      return DType::kFP32;
    case formats::ScaleType::kUe8m0:
      return DType::kUE8M0;
    case formats::ScaleType::kE4m3:
    case formats::ScaleType::kNone:
      return DType::kE4M3;
  }
  return DType::kUnknown;
}

/// Fills memory and counts what it filled, so that a test can see that there was something to fill.
class Spoiler {
 public:
  Spoiler(Fill fill, Columns columns) : fill_(fill), columns_(columns) {}

  int64_t bytes() const { return bytes_; }

  void elements(uint8_t* p, int64_t n, DType type) {
    fill_bytes({p, static_cast<size_t>(n)}, type, fill_, ++seed_);
    bytes_ += n;
  }
  void elements(const TensorView& view) {
    cases::for_each_run(view, [&](uint8_t* run, int64_t n) { elements(run, n, view.dtype()); });
  }

  /// Everything around a tensor's elements.
  void gaps(cases::Operand& o) {
    const std::vector<uint8_t> kept = cases::contents(o.view);
    o.memory.whole([&](uint8_t* p) { elements(p, o.memory.whole_bytes(), o.view.dtype()); });
    write_contents(o.view, kept);
    bytes_ -= static_cast<int64_t>(kept.size());
  }

  void slot(const CacheView& cache, int64_t slot) {
    if (!cache.paged() || cache.record == Record::kBf16) {
      plain_slot(cache, slot);
      return;
    }
    const formats::RecordSpec spec = formats::record_spec(cache.record, static_cast<int32_t>(cache.d));
    const auto row = [&](int32_t plane, int32_t offset) {
      return formats::plane_row(cache.block(slot), cache.page(), spec, plane, slot % cache.page()) + offset;
    };
    for (int32_t k = 0; k < spec.num_segments; ++k) {
      const formats::Segment& segment = spec.segments[k];
      if (columns_ != Columns::kAll && (segment.first >= kValueColumns) != (columns_ == Columns::kKeysOnly))
        continue;
      elements(row(segment.plane, segment.offset), formats::segment_bytes(segment),
               storage_of(segment.element));
    }
    if (columns_ == Columns::kKeysOnly) return;
    const int32_t scales = formats::num_scales(spec) * formats::scale_bytes(spec.scales.type);
    elements(row(spec.scales.plane, spec.scales.offset), scales, storage_of(spec.scales.type));
    padding(cache, slot);
  }

  /// The bytes of a token that mean nothing.
  void padding(const CacheView& cache, int64_t slot) {
    if (!cache.paged() || cache.record == Record::kBf16) return;
    const formats::RecordSpec spec = formats::record_spec(cache.record, static_cast<int32_t>(cache.d));
    uint8_t* scales =
        formats::plane_row(cache.block(slot), cache.page(), spec, spec.scales.plane, slot % cache.page());
    const int32_t used = formats::num_scales(spec) * formats::scale_bytes(spec.scales.type);
    elements(scales + spec.scales.offset + used, spec.scales.padding, DType::kUInt8);
  }

 private:
  // Rows of floats, for every KV head.
  void plain_slot(const CacheView& cache, int64_t slot) {
    const TensorView& view = cache.view;
    const int last = view.rank() - 1;
    const int64_t d = view.size(last);
    const int64_t first = columns_ == Columns::kKeysOnly ? std::min(kValueColumns, d) : 0;
    const int64_t end = columns_ == Columns::kValues ? std::min(kValueColumns, d) : d;
    TensorView row = narrowed(view, 0, slot / cache.page());
    if (cache.paged()) row = narrowed(row, 1, slot % cache.page());
    elements(narrowed(row, last, first, end - first));
  }

  Fill fill_;
  Columns columns_;
  int64_t bytes_ = 0;
  uint64_t seed_ = 0;
};

/// Entries of token lists past their lengths, of block tables past the sequences.
inline void spoil_unread_entries(cases::CaseData& data, Spoiler& spoiler, const char* list,
                                 const char* length, int64_t keys_of_entry = 1) {
  if (!data.has(list) || !data.has(length)) return;
  for (const Token t : all_tokens(data.what())) {
    const TensorView entries = of_token(data.what().op, list, data.view(list), t);
    const int last = entries.rank() - 1;
    const int64_t width = entries.size(last);
    const int32_t given = *of_token(data.what().op, length, data.view(length), t).data_as<int32_t>();
    const int64_t read = (std::max<int64_t>(given, 0) + keys_of_entry - 1) / keys_of_entry;
    if (read < width) spoiler.elements(narrowed(entries, last, read, width - read));
  }
}

/// Rows of the rotary table at positions that no token has.
inline void spoil_unused_positions(cases::CaseData& data, Spoiler& spoiler) {
  if (!data.has("cos_sin_cache")) return;
  const TensorView table = data.view("cos_sin_cache");
  const TensorView positions = data.view("token_positions");
  std::vector<bool> used(static_cast<size_t>(table.size(0)));
  for (int64_t i = 0; i < positions.size(0); ++i) {
    const int64_t position = positions.data_as<int32_t>()[i * positions.stride(0)];
    used[static_cast<size_t>(std::clamp<int64_t>(position, 0, table.size(0) - 1))] = true;
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) spoiler.elements(narrowed(table, 0, static_cast<int64_t>(i)));
  }
}

/// Outputs of partial results that are empty.
inline void spoil_empty_partials(cases::CaseData& data, Spoiler& spoiler) {
  if (!data.has("lse_partials")) return;
  const TensorView lse = data.view("lse_partials");
  for (int64_t n = 0; n < lse.size(0); ++n) {
    for (int64_t s = 0; s < lse.size(1); ++s) {
      for (int64_t h = 0; h < lse.size(2); ++h) {
        const auto at = [&](const TensorView& view) {
          return narrowed(narrowed(narrowed(view, 0, n), 1, s), 2, h);
        };
        if (std::isinf(*at(lse).data_as<float>())) spoiler.elements(at(data.view("out_partials")));
      }
    }
  }
}

inline int64_t slot_at(const TensorView& slots, int64_t i) {
  const int64_t at = i * slots.stride(0);
  return slots.dtype() == DType::kInt64 ? slots.data_as<int64_t>()[at] : slots.data_as<int32_t>()[at];
}

/// append_kv: rows that are skipped or overwritten by later ones, and what the written slots held.
inline void spoil_append(cases::CaseData& data, Spoiler& spoiler) {
  const CacheView cache = cache_view(data, "kv_cache");
  const TensorView slots = data.view("slots");
  std::vector<int64_t> last_row(static_cast<size_t>(cache.slots()), -1);
  for (int64_t i = 0; i < slots.size(0); ++i) {
    const int64_t slot = slot_at(slots, i);
    if (slot < 0 || slot >= cache.slots()) continue;
    last_row[static_cast<size_t>(slot)] = i;
    spoiler.slot(cache, slot);
  }
  for (int64_t i = 0; i < slots.size(0); ++i) {
    if (std::find(last_row.begin(), last_row.end(), i) == last_row.end()) {
      spoiler.elements(narrowed(data.view("kv"), 0, i));
    }
  }
}

inline void spoil_caches(cases::CaseData& data, Spoiler& spoiler) {
  const cases::Selection selected = cases::selection(data);
  for (const char* name : {"kv", "k_cache", "kv_cache", "extra_cache"}) {
    if (!data.has(name)) continue;
    const CacheView cache = cache_view(data, name);
    const std::vector<int32_t>& counts = std::string(name) == "extra_cache" ? selected.extra : selected.main;
    for (int64_t slot = 0; slot < cache.slots(); ++slot) {
      if (counts[static_cast<size_t>(slot)] == 0) {
        spoiler.slot(cache, slot);
      } else {
        spoiler.padding(cache, slot);
      }
    }
  }
}

/// All of it: cached rows that nobody selects, padding of all rows, gaps, list entries that are not read,
/// what outputs hold. Returns the number of bytes that were filled.
inline int64_t spoil(cases::CaseData& data, Fill fill, Columns columns) {
  Spoiler spoiler(fill, columns);
  const cases::Op op = data.what().op;
  for (cases::Operand& o : data.operands()) {
    if (o.role == cases::Role::kInput) spoiler.gaps(o);
    if (o.role == cases::Role::kOutput) spoiler.elements(o.view);
  }
  if (cases::is_attention(op)) spoil_caches(data, spoiler);
  if (op == cases::Op::kAppendKv) spoil_append(data, spoiler);
  if (op == cases::Op::kDequantizeKv) {
    const CacheView pages = cache_view(data, "pages");
    for (int64_t slot = 0; slot < pages.slots(); ++slot) spoiler.padding(pages, slot);
  }
  if (cases::is_dense(op)) {
    spoil_unread_entries(data, spoiler, "block_table", "cache_seqlens", data.what().main.page);
  } else {
    spoil_unread_entries(data, spoiler, "indices", "topk_length");
    spoil_unread_entries(data, spoiler, "extra_indices", "extra_topk_length");
  }
  spoil_unused_positions(data, spoiler);
  spoil_empty_partials(data, spoiler);
  return spoiler.bytes();
}

}  // namespace tilewise::testing
