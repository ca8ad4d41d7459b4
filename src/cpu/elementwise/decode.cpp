// Decoding cache records into bf16 tiles in Highway. One token at a time, its segments group by group, each
// under its scale; the rows that come next are prefetched meanwhile, for gathered rows lie anywhere.
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
#include "cpu/elementwise/fp4_values.h"
#include "formats/codec.h"

HWY_BEFORE_NAMESPACE();
namespace tilewise::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

constexpr int64_t kPrefetchRows = 6;

// Whether the code below decodes a record: two vectors of e4m3 codes lie under one scale, and e2m1 has e4m3
// scales, one for 16 codes, in pairs.
constexpr bool is_decodable(const formats::RecordSpec& spec) {
  for (int s = 0; s < spec.num_segments; ++s) {
    const formats::Segment& segment = spec.segments[s];
    const bool is_e2m1 = segment.element == formats::Element::kE2m1;
    if (segment.element == formats::Element::kBf16) continue;
    if (segment.columns % 32 != 0) return false;
    if (is_e2m1 && (!segment.scaled || spec.scales.type != formats::ScaleType::kE4m3)) return false;
    if (is_e2m1 ? spec.scales.group != 16 : segment.scaled && spec.scales.group % 32 != 0) return false;
  }
  return true;
}
#define TW_RECORD(name, enumerator, ...) \
  static_assert(is_decodable(formats::record_spec(Record::enumerator, 512)), #name);
#include "formats/records.def"
#undef TW_RECORD

HWY_INLINE void prefetch_bytes(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + i);
}

HWY_INLINE void prefetch_row(const formats::RecordSpec& spec, int64_t page_size, const RowRef& row) {
  for (int plane = 0; plane < spec.num_planes; ++plane) {
    prefetch_bytes(formats::plane_row(row.page, page_size, spec, plane, row.offset), spec.plane_bytes[plane]);
  }
}

HWY_INLINE float group_scale(const formats::Scales& scales, const uint8_t* plane, int32_t group) {
  const uint8_t* place = plane + formats::scale_offset(scales, group);
  return formats::scale_value(scales.type,
                              scales.type == formats::ScaleType::kFp32 ? formats::load_u32(place) : *place);
}

// A power of two so far from fp32's limits that its product with any e4m3 value is a normal number: bf16 then
// holds the product exactly.
HWY_INLINE bool is_plain_power(float scale) {
  const uint32_t bits = f32_to_bits(scale);
  const uint32_t exponent = bits >> 23;  // and the sign, which makes it too large
  return (bits & 0x7FFFFFu) == 0 && exponent >= 27 && exponent <= 227;
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void decode_e4m3(const uint8_t* codes, float scale, int64_t n, BF16* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = formats::element_value(formats::Element::kE4m3, codes[i], scale);
}

HWY_INLINE void decode_e2m1(const uint8_t* codes, const Fp4Values& values, BF16* out) {
  for (int64_t i = 0; i < 16; ++i) {
    const int code = codes[i / 2] >> (4 * (i % 2)) & 15;
    out[i].bits = static_cast<uint16_t>(values.low[code] | values.high[code] << 8);
  }
}

HWY_INLINE void decode_e2m1_pair(const uint8_t* codes, const Fp4Values& first, const Fp4Values& second,
                                 BF16* out) {
  decode_e2m1(codes, first, out);
  decode_e2m1(codes + 8, second, out + 16);
}
#else
// Two vectors of e4m3 values, divided by kLoadedUnit.
#if HWY_TARGET <= HWY_AVX2
// Read as fp16, e4m3's bits at the places of fp16's are the value times 2^-8, subnormal codes included.
constexpr float kLoadedUnit = 256.0f;
HWY_INLINE void load_e4m3(const uint8_t* codes, V& first, V& second) {
  const D d;
  const hn::Rebind<hwy::float16_t, D> dh;
  const hn::Repartition<uint16_t, D> d16;
  const hn::Half<decltype(d16)> half;
  const hn::Rebind<int8_t, decltype(d16)> di8;
  const hn::RebindToSigned<decltype(d16)> di16;
  // Extending the sign puts it where fp16 has it.
  const auto wide = hn::PromoteTo(di16, hn::LoadU(di8, reinterpret_cast<const int8_t*>(codes)));
  const auto bits = hn::And(hn::ShiftLeft<7>(hn::BitCast(d16, wide)), hn::Set(d16, uint16_t{0xBFFF}));
  const auto nan_bits = hn::Set(d16, uint16_t{kE4m3Nan << 7});
  const auto fp16 = hn::IfThenElse(hn::Eq(hn::And(bits, nan_bits), nan_bits), hn::Set(d16, kF16Nan), bits);
  first = hn::PromoteTo(d, hn::BitCast(dh, hn::LowerHalf(half, fp16)));
  second = hn::PromoteTo(d, hn::BitCast(dh, hn::UpperHalf(half, fp16)));
}
#else
constexpr float kLoadedUnit = 1.0f;
HWY_INLINE void load_e4m3(const uint8_t* codes, V& first, V& second) {
  const D d;
  first = e4m3_value(d, load_bytes(d, codes));
  second = e4m3_value(d, load_bytes(d, codes + kLanes));
}
#endif

// n codes under one scale.
HWY_INLINE void decode_e4m3(const uint8_t* codes, float scale, int64_t n, BF16* out) {
  const D d;
  const hn::Repartition<uint16_t, D> d16;
  V first, second;
  if (is_plain_power(scale)) {
    const V factor = hn::Set(d, kLoadedUnit * scale);
    for (int64_t i = 0; i < n; i += 2 * kLanes) {
      load_e4m3(codes + i, first, second);
      const auto first_bits = hn::BitCast(d16, hn::Mul(first, factor));
      const auto second_bits = hn::BitCast(d16, hn::Mul(second, factor));
      hn::StoreU(hn::ConcatOdd(d16, second_bits, first_bits), d16, &out[i].bits);
    }
    return;
  }
  // First the code's value, then the product: an extreme scale allows no other order.
  const V to_value = hn::Set(d, kLoadedUnit);
  const V factor = hn::Set(d, scale);
  for (int64_t i = 0; i < n; i += 2 * kLanes) {
    load_e4m3(codes + i, first, second);
    store_bf16(d, hn::Mul(hn::Mul(first, to_value), factor), out + i);
    store_bf16(d, hn::Mul(hn::Mul(second, to_value), factor), out + i + kLanes);
  }
}

// Two groups of 16 codes. Wider vectors gain nothing: the stores are the limit.
HWY_INLINE void decode_e2m1_pair(const uint8_t* codes, const Fp4Values& first, const Fp4Values& second,
                                 BF16* out) {
  const hn::Full128<uint8_t> d;
  const hn::Full128<uint16_t> d16;
  const auto bytes = hn::LoadU(d, codes);
  const auto even = hn::And(bytes, hn::Set(d, uint8_t{15}));
  const auto odd = hn::ShiftRight<4>(bytes);
  const auto look_up = [&](auto index, const Fp4Values& values, BF16* to) HWY_ATTR {
    const auto low = hn::TableLookupBytes(hn::Load(d, values.low), index);
    const auto high = hn::TableLookupBytes(hn::Load(d, values.high), index);
    hn::StoreU(hn::ZipLower(d16, low, high), d16, &to[0].bits);
    hn::StoreU(hn::ZipUpper(d16, low, high), d16, &to[8].bits);
  };
  look_up(hn::InterleaveLower(d, even, odd), first, out);
  look_up(hn::InterleaveUpper(d, even, odd), second, out + 16);
}
#endif

HWY_INLINE void decode_segment(const formats::Segment& segment, const formats::Scales& scales,
                               const uint8_t* data, const uint8_t* scale_row, BF16* out) {
  if (segment.element == formats::Element::kBf16) {
    std::memcpy(out, data, static_cast<size_t>(segment.columns) * sizeof(BF16));
    return;
  }
  if (!segment.scaled) {
    decode_e4m3(data, 1.0f, segment.columns, out);
    return;
  }
  const int32_t groups = segment.columns / scales.group;
  if (segment.element == formats::Element::kE4m3) {
    for (int32_t g = 0; g < groups; ++g) {
      const int64_t at = int64_t{g} * scales.group;
      decode_e4m3(data + at, group_scale(scales, scale_row, g), scales.group, out + at);
    }
    return;
  }
  const auto values_of = [&](int32_t g) -> const Fp4Values& {
    return kFp4Values[scale_row[formats::scale_offset(scales, g)]];
  };
  for (int32_t g = 0; g < groups; g += 2)
    decode_e2m1_pair(data + int64_t{8} * g, values_of(g), values_of(g + 1), out + int64_t{16} * g);
}

void decode_token(const formats::RecordSpec& spec, int64_t page_size, const RowRef& row, BF16* out) {
  // Copies: the compiler must not think that what is written into the tile changes them.
  const formats::Scales scales = spec.scales;
  const uint8_t* scale_row = formats::plane_row(row.page, page_size, spec, scales.plane, row.offset);
  for (int s = 0; s < spec.num_segments; ++s) {
    const formats::Segment segment = spec.segments[s];
    const uint8_t* data = formats::plane_row(row.page, page_size, spec, segment.plane, row.offset);
    decode_segment(segment, scales, data + segment.offset, scale_row, out + segment.first);
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
  for_plain_rows(rows, n, d,
                 [&](int64_t i, const uint8_t* from) HWY_ATTR { decode_e4m3(from, 1.0f, d, out + i * ld); });
}

void decode_plain_f16(const RowRef* rows, int64_t n, int64_t d, float* out, int64_t ld) {
  const D df;
  for_plain_rows(rows, n, 2 * d, [&](int64_t i, const uint8_t* from) HWY_ATTR {
    const auto* halves = reinterpret_cast<const FP16*>(from);
    for (int64_t c = 0; c < d; c += kLanes) hn::StoreU(load_f16(df, halves + c), df, out + i * ld + c);
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
