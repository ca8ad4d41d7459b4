// The vector forms of the conversions against the scalar definitions, bit for bit, on every instruction set
// that this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "core/numeric.h"
#include "cpu/isa.h"
#include "formats/codec.h"
#include "tests/support/guarded_memory.h"
#include "tilewise/device.h"

namespace tilewise {
namespace {

using formats::RecordSpec;
using testing::GuardedMemory;

// Calls body(isa) for every instruction set of this machine.
template <class Body>
void for_every_isa(const Body& body) {
  const Device device = Device::cpu();
  uint32_t ran = 0;
  for (const cpu::Isa& isa : cpu::isas()) {
    if (cpu::isa_refusal(isa, device)) continue;
    SCOPED_TRACE(isa.kernel);
    body(isa);
    ran |= isa.features;
  }
  EXPECT_EQ(ran, device.cpu_features & ~uint32_t{kCpuAmxBf16 | kCpuAvx512Bf16});
}

// Floats of every exponent with both signs, at and beside the places where roundings change, and NaNs.
std::vector<float> many_floats() {
  std::vector<float> all;
  for (uint32_t top = 0; top < 0x10000; ++top) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      all.push_back(bits_to_f32(top << 16 | low));
    }
  }
  return all;
}

// Decoding ---------------------------------------------------------------------------------------------

std::vector<float> fp32_scales() {
  std::vector<float> all;
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (uint32_t rest : {0x000000u, 0x000001u, 0x200000u, 0x400000u, 0x5A5A5Au, 0x7FFFFFu}) {
      all.push_back(bits_to_f32(exponent << 23 | rest));
      all.push_back(bits_to_f32(0x80000000u | exponent << 23 | rest));
    }
  }
  return all;
}

// The stored scales that groups are to have, as the bits that lie in the cache.
std::vector<uint32_t> stored_scales(formats::ScaleType type) {
  std::vector<uint32_t> all;
  if (type == formats::ScaleType::kFp32) {
    for (float scale : fp32_scales()) all.push_back(f32_to_bits(scale));
  } else {
    for (uint32_t byte = 0; byte < 256; ++byte) all.push_back(byte);
  }
  return all;
}

class Cache {
 public:
  Cache(const RecordSpec& spec, int64_t page)
      : spec_(spec),
        page_(page),
        memory_(page * formats::token_bytes(spec), 1, GuardedMemory::Guard::kBehind) {
    std::mt19937 random(31);
    std::generate_n(memory_.data(), memory_.bytes(), [&] { return static_cast<uint8_t>(random()); });
  }

  // Group g of token t gets scale t + g of the list, and every code appears under it as groups and tokens go.
  void fill(const std::vector<uint32_t>& scales, int64_t first_code) {
    for (int64_t t = 0; t < page_; ++t) {
      uint8_t* data = formats::plane_row(memory_.data(), page_, spec_, spec_.segments[0].plane, t);
      uint8_t* scale_row = formats::plane_row(memory_.data(), page_, spec_, spec_.scales.plane, t);
      const int64_t bytes = formats::segment_bytes(spec_.segments[0]);
      const int32_t groups = formats::num_scales(spec_);
      for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(first_code + i % (bytes / groups));
      for (int32_t g = 0; g < groups; ++g) {
        const uint32_t stored = scales[static_cast<size_t>(t * groups + g) % scales.size()];
        std::memcpy(scale_row + formats::scale_offset(spec_.scales, g), &stored,
                    static_cast<size_t>(formats::scale_bytes(spec_.scales.type)));
      }
    }
  }

  void expect_decodes(const cpu::Isa& isa) const {
    std::vector<cpu::RowRef> rows;
    for (int64_t t = 0; t < page_; ++t) rows.push_back({memory_.data(), t});
    const int64_t ld = spec_.d + 32;
    std::vector<BF16> got(static_cast<size_t>(page_ * ld), BF16{0xABCD});
    isa.decode->record(spec_, page_, rows.data(), page_, got.data(), ld);
    std::vector<BF16> expected(static_cast<size_t>(ld), BF16{0xABCD});
    for (int64_t t = 0; t < page_; ++t) {
      formats::decode_row(spec_, memory_.data(), page_, t, expected.data());
      for (int64_t c = 0; c < ld; ++c) {
        ASSERT_EQ(got[static_cast<size_t>(t * ld + c)].bits, expected[static_cast<size_t>(c)].bits)
            << record_name(spec_.record) << " token " << t << " column " << c;
      }
    }
  }

 private:
  RecordSpec spec_;
  int64_t page_;
  GuardedMemory memory_;
};

TEST(VectorDecode, EveryCodeUnderEveryScale) {
  for_every_isa([](const cpu::Isa& isa) {
    for (Record record : all_records()) {
      const RecordSpec spec = formats::record_spec(record, 576);
      if (spec.scales.type == formats::ScaleType::kNone) continue;
      const std::vector<uint32_t> scales = stored_scales(spec.scales.type);
      const int64_t groups = formats::num_scales(spec);
      const int64_t group_bytes = formats::segment_bytes(spec.segments[0]) / groups;
      Cache cache(spec, (static_cast<int64_t>(scales.size()) + groups - 1) / groups);
      for (int64_t first_code = 0; first_code < 256; first_code += group_bytes) {
        cache.fill(scales, first_code);
        cache.expect_decodes(isa);
      }
    }
  });
}

TEST(VectorDecode, RandomBytesAndNothingBehindThem) {
  for_every_isa([](const cpu::Isa& isa) {
    for (Record record : all_records()) {
      for (int64_t page : {1, 2, 7, 64}) Cache(formats::record_spec(record, 576), page).expect_decodes(isa);
    }
  });
}

TEST(VectorDecode, PlainRows) {
  for (int64_t d : {512, 576}) {
    constexpr int64_t kRows = 130;  // 130 * 512 > 65536: every 16-bit pattern
    std::vector<uint16_t> words(static_cast<size_t>(kRows * d));
    for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i);
    const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
    std::vector<cpu::RowRef> rows;
    std::vector<cpu::RowRef> short_rows;
    for (int64_t r = 0; r < kRows; ++r) rows.push_back({bytes + 2 * r * d, 0});
    for (int64_t r = 0; r < kRows; ++r) short_rows.push_back({bytes + r * d, 0});
    for_every_isa([&](const cpu::Isa& isa) {
      std::vector<BF16> narrow(words.size());
      std::vector<float> wide(words.size());
      isa.decode->plain_bf16(rows.data(), kRows, d, narrow.data(), d);
      EXPECT_EQ(std::memcmp(narrow.data(), words.data(), 2 * words.size()), 0);
      isa.decode->plain_e4m3(short_rows.data(), kRows, d, narrow.data(), d);
      isa.decode->plain_f16(rows.data(), kRows, d, wide.data(), d);
      for (size_t i = 0; i < words.size(); ++i) {
        ASSERT_EQ(narrow[i].bits, f32_to_bf16_bits(e4m3_to_f32(bytes[i]))) << "code " << int{bytes[i]};
        const float expected = f16_bits_to_f32(words[i]);
        ASSERT_TRUE(f32_is_nan(expected) ? f32_is_nan(wide[i])
                                         : f32_to_bits(wide[i]) == f32_to_bits(expected))
            << "fp16 " << words[i];
      }
    });
  }
}

// Rows -------------------------------------------------------------------------------------------------

// All lengths below go through whole vectors and through the eight elements that may follow them.
constexpr std::array<int64_t, 6> kLengths = {8, 16, 24, 56, 512, 576};

TEST(VectorRows, WidenIsExact) {
  std::vector<uint16_t> words(0x10000);
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(i);
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  const auto same = [](float a, float b) {
    return f32_is_nan(b) ? f32_is_nan(a) : f32_to_bits(a) == f32_to_bits(b);
  };
  for_every_isa([&](const cpu::Isa& isa) {
    for (int64_t n : kLengths) {
      alignas(64) std::array<float, 576 + 8> out;
      for (int64_t first = 0; first + n <= 0x10000; first += n) {
        isa.rows->widen(&words[first], DType::kBF16, n, out.data());
        for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(same(out[i], bf16_bits_to_f32(words[first + i])));
        isa.rows->widen(&words[first], DType::kFP16, n, out.data());
        for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(same(out[i], f16_bits_to_f32(words[first + i])));
        isa.rows->widen(bytes + first, DType::kE4M3, n, out.data());
        for (int64_t i = 0; i < n; ++i) ASSERT_TRUE(same(out[i], e4m3_to_f32(bytes[first + i])));
      }
    }
  });
}

TEST(VectorRows, NarrowAndRoundAreToNearestEven) {
  const std::vector<float> floats = many_floats();
  const auto count = static_cast<int64_t>(floats.size());
  for_every_isa([&](const cpu::Isa& isa) {
    for (int64_t n : kLengths) {
      alignas(64) std::array<float, 576> x;
      std::array<uint16_t, 576 + 1> out;
      for (int64_t first = 0; first + n <= count; first += n) {
        std::copy_n(&floats[first], n, x.begin());
        out[n] = 0xABCD;
        isa.rows->narrow(x.data(), n, DType::kBF16, out.data());
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[i], f32_to_bf16_bits(x[i])) << f32_to_bits(x[i]);
        isa.rows->narrow(x.data(), n, DType::kFP16, out.data());
        for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[i], f32_to_f16_bits(x[i])) << f32_to_bits(x[i]);
        ASSERT_EQ(out[n], 0xABCD) << "behind " << n << " elements";
        isa.rows->round_to_bf16(x.data(), n);
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(f32_to_bits(x[i]), uint32_t{f32_to_bf16_bits(floats[first + i])} << 16);
        }
      }
    }
  });
}

TEST(VectorRows, ProductsAndSumsStopAtTheirLength) {
  for_every_isa([](const cpu::Isa& isa) {
    for (int64_t n : kLengths) {
      alignas(64) std::array<float, 576 + 8> a;
      alignas(64) std::array<float, 576 + 8> b;
      for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i) - 100.0f;
      for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 7);
      isa.rows->multiply(a.data(), n, 4.0f);
      isa.rows->merge(a.data(), 0.5f, b.data(), 8.0f, n);
      for (int64_t i = 0; i < static_cast<int64_t>(a.size()); ++i) {
        const float x = static_cast<float>(i) - 100.0f;
        ASSERT_EQ(a[i], i < n ? 2.0f * x + 8.0f * static_cast<float>(i % 7) : x) << i << " of " << n;
      }
    }
  });
}

// The codes and exponents of x by the scalar conversions.
void expect_cast(const cpu::Isa& isa, const std::array<float, kFusedDim>& x) {
  constexpr int64_t kStride = 48;
  std::array<uint8_t, cpu::kCastGroups * kStride> codes;
  codes.fill(0xEE);
  std::array<uint8_t, cpu::kCastGroups> exponents;
  isa.rows->cast_fp8(x.data(), codes.data(), kStride, exponents.data());
  for (int64_t g = 0; g < cpu::kCastGroups; ++g) {
    const std::span<const float> group(&x[g * kCastGroup], kCastGroup);
    float amax = 1e-4f;
    for (float v : group) amax = std::max(amax, f32_is_nan(v) ? 0.0f : bits_to_f32(f32_magnitude_bits(v)));
    const uint8_t exponent = pow2_ceil_to_ue8m0(amax / 448.0f);
    ASSERT_EQ(int{exponents[g]}, int{exponent});
    const float inverse = ue8m0_to_f32(static_cast<uint8_t>(254 - exponent));
    for (int64_t i = 0; i < kStride; ++i) {
      const int expected = i < kCastGroup ? f32_to_e4m3(group[i] * inverse) : 0xEE;
      ASSERT_EQ(int{codes[g * kStride + i]}, expected) << "group " << g << " element " << i;
    }
  }
}

TEST(VectorRows, CastFp8RoundsTiesToEven) {
  std::vector<float> ties;
  for (uint8_t code = 0; code < kE4m3Max; ++code) {
    const float tie = (e4m3_to_f32(code) + e4m3_to_f32(static_cast<uint8_t>(code + 1))) / 2;
    for (float x : {e4m3_to_f32(code), std::nextafter(tie, 0.0f), tie, std::nextafter(tie, 448.0f)}) {
      ties.push_back(x);
      ties.push_back(-x);
    }
  }
  for_every_isa([&](const cpu::Isa& isa) {
    for (size_t first = 0; first < ties.size();) {
      alignas(64) std::array<float, kFusedDim> x;
      for (size_t i = 0; i < x.size(); ++i) {
        // A first element of 448 makes the scale 1.
        x[i] = i % kCastGroup == 0 ? 448.0f : ties[first++ % ties.size()];
      }
      expect_cast(isa, x);
    }
  });
}

TEST(VectorRows, CastFp8TakesAnyBits) {
  std::mt19937 random(33);
  for_every_isa([&](const cpu::Isa& isa) {
    for (int round = 0; round < 200; ++round) {
      alignas(64) std::array<float, kFusedDim> x;
      for (float& v : x) v = bits_to_f32(static_cast<uint32_t>(random()));
      // Any exponent in one round, magnitudes near each other in the next.
      if (round % 2 == 0) {
        for (float& v : x) v = bits_to_f32((f32_to_bits(v) & 0x83FFFFFFu) | 0x3C000000u);
      }
      expect_cast(isa, x);
    }
  });
}

}  // namespace
}  // namespace tilewise
