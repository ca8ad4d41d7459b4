// Every product of an e2m1 value and an e4m3 scale in bf16, where the product is exact.
#pragma once

#include <array>
#include <cstdint>

#include "core/numeric.h"
#include "formats/codec.h"

namespace tilewise::cpu {

/// What the 16 codes are worth under one scale: a table of low bytes and one of high bytes, for lookups that
/// take bytes.
struct alignas(32) Fp4Values {
  uint8_t low[16];
  uint8_t high[16];
};

constexpr std::array<Fp4Values, 256> make_fp4_values() {
  std::array<Fp4Values, 256> all{};
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 16; ++code) {
      // Under a NaN every value is NaN, which a constant expression may not compute.
      const bool is_nan = (scale & 0x7F) == kE4m3Nan;
      const float factor = is_nan ? 0.0f : e4m3_to_f32(static_cast<uint8_t>(scale));
      const BF16 product =
          formats::element_value(formats::Element::kE2m1, static_cast<uint8_t>(code), factor);
      const BF16 value = is_nan ? BF16{kBf16Nan} : product;
      all[scale].low[code] = static_cast<uint8_t>(value.bits);
      all[scale].high[code] = static_cast<uint8_t>(value.bits >> 8);
    }
  }
  return all;
}

/// By the scale's code. 8 KB, of which a cache's usual scales touch a few hundred bytes.
inline constexpr std::array<Fp4Values, 256> kFp4Values = make_fp4_values();

}  // namespace tilewise::cpu
