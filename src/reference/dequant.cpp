// The oracle's record table, decoder and encoder.
#include "reference/dequant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/numeric.h"
#include "reference/small_floats.h"

namespace tilewise::reference {
namespace {

enum class Code { kE4m3, kE2m1, kBf16 };
enum class Scale { kNone, kFp32, kUe8m0, kE4m3, kE4m3Up };

// Where a token's bytes of one kind lie: in the plane that begins `plane_start` bytes a token behind the
// page's begin and holds `plane_bytes` a token, `offset` bytes into the token's row.
struct Place {
  int plane_start;
  int plane_bytes;
  int offset;
};

// Columns [0, scaled) are `code` times the scale of their group of `group` columns; the others are `rest`.
struct Layout {
  Record record;
  int d;
  int bytes;
  Code code;
  int scaled;
  Place data;
  Scale scale;
  int group;
  Place scales;
  int padding;  // bytes behind the scales
  Code rest;
  Place rest_data;
};

constexpr Place kNowhere{0, 0, 0};

constexpr std::array<Layout, 9> kLayouts = {{
    {Record::kV32Fp8,
     576,
     656,
     Code::kE4m3,
     512,
     {0, 656, 0},
     Scale::kFp32,
     128,
     {0, 656, 512},
     0,
     Code::kBf16,
     {0, 656, 528}},
    {Record::kV32NopeFp8,
     512,
     528,
     Code::kE4m3,
     512,
     {0, 528, 0},
     Scale::kFp32,
     128,
     {0, 528, 512},
     0,
     Code::kBf16,
     kNowhere},
    {Record::kV4Fp8,
     512,
     584,
     Code::kE4m3,
     448,
     {0, 576, 0},
     Scale::kUe8m0,
     64,
     {576, 8, 0},
     1,
     Code::kBf16,
     {0, 576, 448}},
    {Record::kV41Fp8,
     512,
     528,
     Code::kE4m3,
     512,
     {0, 512, 0},
     Scale::kUe8m0,
     32,
     {512, 16, 0},
     0,
     Code::kBf16,
     kNowhere},
    {Record::kV41Fp4,
     512,
     288,
     Code::kE2m1,
     512,
     {0, 256, 0},
     Scale::kE4m3,
     16,
     {256, 32, 0},
     0,
     Code::kBf16,
     kNowhere},
    {Record::kV41Fp8Row,
     512,
     528,
     Code::kE4m3,
     512,
     {0, 528, 0},
     Scale::kUe8m0,
     32,
     {0, 528, 512},
     0,
     Code::kBf16,
     kNowhere},
    {Record::kV41Fp4Row,
     512,
     288,
     Code::kE2m1,
     512,
     {0, 288, 0},
     Scale::kE4m3,
     16,
     {0, 288, 256},
     0,
     Code::kBf16,
     kNowhere},
    {Record::kV41MainFp4,
     512,
     384,
     Code::kE2m1,
     448,
     {0, 224, 0},
     Scale::kE4m3,
     16,
     {224, 32, 0},
     4,
     Code::kBf16,
     {256, 128, 0}},
    {Record::kV32Nvfp4,
     576,
     352,
     Code::kE2m1,
     512,
     {0, 352, 0},
     Scale::kE4m3Up,
     16,
     {0, 352, 320},
     0,
     Code::kE4m3,
     {0, 352, 256}},
}};

const Layout& layout_of(Record record) {
  for (const Layout& layout : kLayouts) {
    if (layout.record == record) return layout;
  }
  throw std::invalid_argument("reference: no such record");
}

uint8_t* row_of(const Place& place, const Pages& pages, int64_t slot) {
  return pages.block(slot) + place.plane_start * pages.page + slot % pages.page * place.plane_bytes +
         place.offset;
}

// Byte of group s's scale behind the place of the scales.
int scale_byte(const Layout& layout, int s) {
  if (layout.record == Record::kV32Nvfp4) return 8 * (s % 4) + s / 4;
  return layout.scale == Scale::kFp32 ? 4 * s : s;
}

float read_scale(const Layout& layout, const uint8_t* scales, int s) {
  const uint8_t* at = scales + scale_byte(layout, s);
  switch (layout.scale) {
    case Scale::kFp32: {
      float scale = 0;
      std::memcpy(&scale, at, sizeof scale);
      return scale;
    }
    case Scale::kUe8m0:
      if (*at == 255) return std::numeric_limits<float>::quiet_NaN();
      return static_cast<float>(std::ldexp(1.0, *at - 127));
    default:
      return E4m3::get().value(*at);
  }
}

float read_code(Code code, const uint8_t* data, int column) {
  if (code == Code::kE4m3) return E4m3::get().value(data[column]);
  return E2m1::get().value(column % 2 == 0 ? data[column / 2] % 16 : data[column / 2] / 16);
}

// What encoding a group needs to know: the scale's bytes, and what to divide by.
struct GroupScale {
  bool valid = true;  // false: a NaN or Inf in the group
  double value = 1;
  std::array<uint8_t, 4> bytes{};
};

GroupScale choose_scale(Scale kind, const uint16_t* x, int count) {
  GroupScale scale;
  double amax = 0;
  for (int i = 0; i < count; ++i) {
    const double size = std::fabs(bf16_bits_to_f32(x[i]));
    if (!std::isfinite(size)) scale.valid = false;
    amax = std::max(amax, size);
  }
  if (kind == Scale::kE4m3 || kind == Scale::kE4m3Up) {
    const double wanted = std::clamp(amax / 6, 0x1p-9, 448.0);
    const int code = kind == Scale::kE4m3 ? E4m3::get().nearest(wanted) : E4m3::get().not_below(wanted);
    scale.bytes[0] = scale.valid ? static_cast<uint8_t>(code) : kE4m3NanCode;
    scale.value = E4m3::get().magnitude(code);
    return scale;
  }
  const int exponent = scale.valid ? ceil_log2(std::max(amax / 448, static_cast<double>(1e-4f))) : 0;
  scale.value = std::ldexp(1.0, exponent);
  if (kind == Scale::kUe8m0) {
    scale.bytes[0] = scale.valid ? static_cast<uint8_t>(exponent + 127) : 255;
  } else {
    const float stored =
        scale.valid ? static_cast<float>(scale.value) : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(scale.bytes.data(), &stored, sizeof stored);
  }
  return scale;
}

uint8_t encode_e4m3(uint16_t x, const GroupScale& scale) {
  if (!scale.valid) return x >> 15 != 0 ? 0x80 : 0;
  return to_e4m3(bf16_bits_to_f32(x) / scale.value);
}

uint8_t encode_e2m1(uint16_t x, const GroupScale& scale) {
  const int sign = x >> 15 != 0 ? E2m1::kSignBit : 0;
  if (!scale.valid) return static_cast<uint8_t>(sign);
  const double size = std::fabs(bf16_bits_to_f32(x));
  if (size == 0) return 0;
  return static_cast<uint8_t>(sign | E2m1::get().nearest(size / scale.value));
}

// The bfloat16 values that a group of e2m1 codes reads back as.
void through_group(const uint16_t* x, int count, uint16_t* out) {
  const GroupScale scale = choose_scale(Scale::kE4m3, x, count);
  for (int i = 0; i < count; ++i) {
    const double value = E2m1::get().value(encode_e2m1(x[i], scale)) * scale.value;
    out[i] = scale.valid ? f32_to_bf16_bits(static_cast<float>(value)) : kBf16Nan;
  }
}

void encode_rest(const Layout& layout, const uint16_t* x, uint8_t* data) {
  const int count = layout.d - layout.scaled;
  if (layout.rest == Code::kE4m3) {
    for (int i = 0; i < count; ++i) data[i] = to_e4m3(bf16_bits_to_f32(x[i]));
    return;
  }
  std::vector<uint16_t> stored(x, x + count);
  if (layout.record == Record::kV41MainFp4) {
    for (int i = 0; i < count; i += layout.group) through_group(x + i, layout.group, stored.data() + i);
  }
  if (count > 0) std::memcpy(data, stored.data(), 2 * static_cast<size_t>(count));
}

uint8_t* plain_row(const Pages& pages, int64_t slot) {
  return pages.block(slot) + slot % pages.page * pages.token_bytes;
}

int64_t record_width(Record record, const Pages& pages) {
  return record == Record::kBf16 ? pages.token_bytes / 2 : layout_of(record).d;
}

// The same tensor, lying in other memory.
Pages in_memory(Pages pages, std::vector<uint8_t>& memory) {
  pages.data = memory.data();
  return pages;
}

}  // namespace

Pages pages_of(const TensorView& cache) {
  const int64_t size = size_of(cache.dtype());
  return {cache.data_as<uint8_t>(), cache.size(0), cache.size(1), cache.stride(0) * size,
          cache.size(3) * size};
}

Record resolve_record(Record record, const TensorView& cache) {
  if (record != Record::kAuto) return record;
  if (cache.dtype() == DType::kBF16) return Record::kBf16;
  for (const Layout& layout : kLayouts) {
    const bool named_only = layout.record == Record::kV32NopeFp8 || layout.record == Record::kV41Fp8Row ||
                            layout.record == Record::kV41Fp4Row;
    if (!named_only && layout.bytes == cache.size(3)) return layout.record;
  }
  throw std::invalid_argument("reference: no record has the size of " + to_string(cache));
}

void decode_token(Record record, const Pages& pages, int64_t slot, uint16_t* out) {
  if (record == Record::kBf16) {
    std::memcpy(out, plain_row(pages, slot), static_cast<size_t>(pages.token_bytes));
    return;
  }
  const Layout& layout = layout_of(record);
  const uint8_t* data = row_of(layout.data, pages, slot);
  const uint8_t* scales = row_of(layout.scales, pages, slot);
  for (int first = 0; first < layout.scaled; first += layout.group) {
    const float scale = read_scale(layout, scales, first / layout.group);
    for (int c = first; c < first + layout.group; ++c) {
      out[c] = f32_to_bf16_bits(read_code(layout.code, data, c) * scale);
    }
  }
  const int count = layout.d - layout.scaled;
  const uint8_t* rest = row_of(layout.rest_data, pages, slot);
  if (layout.rest == Code::kBf16) {
    if (count > 0) std::memcpy(out + layout.scaled, rest, 2 * static_cast<size_t>(count));
    return;
  }
  for (int i = 0; i < count; ++i) out[layout.scaled + i] = f32_to_bf16_bits(read_code(layout.rest, rest, i));
}

std::vector<uint16_t> decode_token(Record record, const Pages& pages, int64_t slot) {
  std::vector<uint16_t> bits(static_cast<size_t>(record_width(record, pages)));
  decode_token(record, pages, slot, bits.data());
  return bits;
}

void encode_token(Record record, const uint16_t* x, const Pages& pages, int64_t slot) {
  if (record == Record::kBf16) {
    std::memcpy(plain_row(pages, slot), x, static_cast<size_t>(pages.token_bytes));
    return;
  }
  const Layout& layout = layout_of(record);
  uint8_t* data = row_of(layout.data, pages, slot);
  uint8_t* scales = row_of(layout.scales, pages, slot);
  const int64_t scale_bytes = layout.scale == Scale::kFp32 ? 4 : 1;
  const int groups = layout.scaled / layout.group;
  std::memset(scales + groups * scale_bytes, 0, static_cast<size_t>(layout.padding));
  for (int s = 0; s < groups; ++s) {
    const int first = s * layout.group;
    const GroupScale scale = choose_scale(layout.scale, x + first, layout.group);
    std::memcpy(scales + scale_byte(layout, s), scale.bytes.data(), static_cast<size_t>(scale_bytes));
    for (int c = first; c < first + layout.group; ++c) {
      if (layout.code == Code::kE4m3) {
        data[c] = encode_e4m3(x[c], scale);
      } else if (c % 2 == 0) {
        data[c / 2] = static_cast<uint8_t>(encode_e2m1(x[c], scale) + 16 * encode_e2m1(x[c + 1], scale));
      }
    }
  }
  encode_rest(layout, x + layout.scaled, row_of(layout.rest_data, pages, slot));
}

std::vector<uint8_t> after_quantize(const QuantizeKvArgs& args, std::span<const uint8_t> old) {
  std::vector<uint8_t> memory(old.begin(), old.end());
  const Pages pages = in_memory(pages_of(args.pages), memory);
  const std::vector<uint16_t> zeros(static_cast<size_t>(args.x.size(1)));
#pragma omp parallel for schedule(static)
  for (int64_t slot = 0; slot < pages.slots(); ++slot) {
    const bool given = slot < args.x.size(0);
    encode_token(args.record, given ? args.x.data_as<uint16_t>() + slot * args.x.stride(0) : zeros.data(),
                 pages, slot);
  }
  return memory;
}

std::vector<uint8_t> after_append(const AppendKvArgs& args, std::span<const uint8_t> old) {
  std::vector<uint8_t> memory(old.begin(), old.end());
  const Pages pages = in_memory(pages_of(args.cache), memory);
  const Record record = resolve_record(args.record, args.cache);
  for (int64_t i = 0; i < args.kv.size(0); ++i) {
    const int64_t at = i * args.slots.stride(0);
    const int64_t slot = args.slots.dtype() == DType::kInt64 ? args.slots.data_as<int64_t>()[at]
                                                             : args.slots.data_as<int32_t>()[at];
    if (slot < 0 || slot >= pages.slots()) continue;
    encode_token(record, args.kv.data_as<uint16_t>() + i * args.kv.stride(0), pages, slot);
  }
  return memory;
}

std::vector<uint16_t> dequantized(const DequantizeKvArgs& args) {
  const Pages pages = pages_of(args.pages);
  const int64_t d = record_width(args.record, pages);
  std::vector<uint16_t> x(static_cast<size_t>(pages.slots() * d));
#pragma omp parallel for schedule(static)
  for (int64_t slot = 0; slot < pages.slots(); ++slot) {
    decode_token(args.record, pages, slot, x.data() + slot * d);
  }
  return x;
}

}  // namespace tilewise::reference
