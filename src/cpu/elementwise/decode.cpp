// Decoding cache records into bf16 tiles in Highway. One token at a time: its scales first, as floats, then
// its segments group by group; the rows that come next are prefetched meanwhile, for gathered rows lie
// anywhere.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/decode.cpp"
#include "cpu/targets.h"
// Second, before any other header of Highway:
#include <hwy/foreach_target.h>
// Then the rest.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

#include "cpu/elementwise/convert-inl.h"
#include "cpu/elementwise/decode.h"
#include "formats/codec.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
// A byte holds two e2m1 values, a group has 16: no more than 8 bytes may go through one scale.
using DHalfGroup = hn::CappedTag<float, 8>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

constexpr int64_t kPrefetchRows = 6;
constexpr int32_t kMaxScales = 32;

HWY_INLINE void prefetch_bytes(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + i);
}

HWY_INLINE void prefetch_row(const formats::RecordSpec& spec, int64_t page_size, const RowRef& row) {
  for (int plane = 0; plane < spec.num_planes; ++plane) {
    prefetch_bytes(formats::plane_row(row.page, page_size, spec, plane, row.offset), spec.plane_bytes[plane]);
  }
}

// The token's scales in group order.
HWY_INLINE void load_scales(const formats::RecordSpec& spec, const uint8_t* plane, float* scales) {
  const D d;
  const int32_t count = formats::num_scales(spec);
  const uint8_t* bytes = plane + spec.scales.offset;
  if (spec.scales.type == formats::ScaleType::kFp32) {
    std::memcpy(scales, bytes, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  uint8_t in_order[kMaxScales + 16] = {};
  for (int32_t s = 0; s < count; ++s) in_order[s] = plane[formats::scale_offset(spec.scales, s)];
  const bool exponents = spec.scales.type == formats::ScaleType::kUe8m0;
  for (int64_t s = 0; s < count; s += kLanes) {
    const auto code = load_bytes(d, in_order + s);
    hn::StoreU(exponents ? ue8m0_value(d, code) : e4m3_value(d, code), d, scales + s);
  }
}

HWY_INLINE void decode_e4m3(const uint8_t* codes, const float* scales, int64_t group, int64_t columns,
                            BF16* out) {
  const D d;
  for (int64_t c = 0; c < columns; c += group) {
    const auto scale = hn::Set(d, scales[c / group]);
    for (int64_t i = c; i < c + group; i += kLanes) {
      store_bf16(d, hn::Mul(e4m3_value(d, load_bytes(d, codes + i)), scale), out + i);
    }
  }
}

HWY_INLINE void copy_e4m3(const uint8_t* codes, int64_t columns, BF16* out) {
  const D d;
  for (int64_t i = 0; i < columns; i += kLanes)
    store_bf16(d, e4m3_value(d, load_bytes(d, codes + i)), out + i);
}

HWY_INLINE void decode_e2m1(const uint8_t* codes, const float* scales, int64_t group, int64_t columns,
                            BF16* out) {
  const DHalfGroup d;
  const U32<DHalfGroup> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < columns; c += group) {
    const auto scale = hn::Set(d, scales[c / group]);
    for (int64_t i = c / 2; i < (c + group) / 2; i += lanes) {
      const auto pair = load_bytes(d, codes + i);
      const auto even = hn::Mul(e2m1_value(d, hn::And(pair, hn::Set(du, 15u))), scale);
      const auto odd = hn::Mul(e2m1_value(d, hn::ShiftRight<4>(pair)), scale);
      const auto both = hn::Or(bf16_bits(d, even), hn::ShiftLeft<16>(bf16_bits(d, odd)));
      hn::StoreU(both, du, reinterpret_cast<uint32_t*>(out + 2 * i));
    }
  }
}

void decode_token(const formats::RecordSpec& spec, int64_t page_size, const RowRef& row, BF16* out) {
  HWY_ALIGN float scales[kMaxScales + 16];
  if (spec.scales.type != formats::ScaleType::kNone) {
    load_scales(spec, formats::plane_row(row.page, page_size, spec, spec.scales.plane, row.offset), scales);
  }
  for (int s = 0; s < spec.num_segments; ++s) {
    const formats::Segment& segment = spec.segments[s];
    const uint8_t* data =
        formats::plane_row(row.page, page_size, spec, segment.plane, row.offset) + segment.offset;
    BF16* to = out + segment.first;
    if (segment.element == formats::Element::kBf16) {
      std::memcpy(to, data, static_cast<size_t>(segment.columns) * sizeof(BF16));
    } else if (segment.element == formats::Element::kE2m1) {
      decode_e2m1(data, scales, spec.scales.group, segment.columns, to);
    } else if (segment.scaled) {
      decode_e4m3(data, scales, spec.scales.group, segment.columns, to);
    } else {
      copy_e4m3(data, segment.columns, to);
    }
  }
}

void decode_record(const formats::RecordSpec& spec, int64_t page_size, const RowRef* rows, int64_t n,
                   BF16* out, int64_t ld) {
  for (int64_t i = 0; i < HWY_MIN(kPrefetchRows, n); ++i) prefetch_row(spec, page_size, rows[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kPrefetchRows < n) prefetch_row(spec, page_size, rows[i + kPrefetchRows]);
    decode_token(spec, page_size, rows[i], out + i * ld);
  }
}

template <class Row>
HWY_INLINE void for_plain_rows(const RowRef* rows, int64_t n, int64_t row_bytes, const Row& row) {
  for (int64_t i = 0; i < HWY_MIN(kPrefetchRows, n); ++i) prefetch_bytes(rows[i].page, row_bytes);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kPrefetchRows < n) prefetch_bytes(rows[i + kPrefetchRows].page, row_bytes);
    row(i, rows[i].page);
  }
}

void decode_plain_bf16(const RowRef* rows, int64_t n, int64_t d, BF16* out, int64_t ld) {
  for_plain_rows(rows, n, 2 * d, [&](int64_t i, const uint8_t* from) {
    std::memcpy(out + i * ld, from, static_cast<size_t>(d) * sizeof(BF16));
  });
}

void decode_plain_e4m3(const RowRef* rows, int64_t n, int64_t d, BF16* out, int64_t ld) {
  for_plain_rows(rows, n, d, [&](int64_t i, const uint8_t* from) { copy_e4m3(from, d, out + i * ld); });
}

void decode_plain_f16(const RowRef* rows, int64_t n, int64_t d, float* out, int64_t ld) {
  const D df;
  const hn::Rebind<hwy::float16_t, D> dh;
  for_plain_rows(rows, n, 2 * d, [&](int64_t i, const uint8_t* from) {
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(from);
    for (int64_t c = 0; c < d; c += kLanes) {
      hn::StoreU(hn::PromoteTo(df, hn::LoadU(dh, halves + c)), df, out + i * ld + c);
    }
  });
}

const DecodeOps kDecodeOps = {decode_record, decode_plain_bf16, decode_plain_e4m3, decode_plain_f16};

}  // namespace HWY_NAMESPACE
}  // namespace tilewise::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tilewise::cpu {

const TargetTables<DecodeOps>& decode_ops() {
  static const TargetTables<DecodeOps> tables = TW_TARGET_TABLES(kDecodeOps);
  return tables;
}

}  // namespace tilewise::cpu
#endif
