// A second encoder for every record, in double precision and written from the description of the records, not
// from src/formats: nearest codes by search, sizes and offsets by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tilewise/kv_format.h"

namespace tilewise::second {

inline constexpr double kInf = std::numeric_limits<double>::infinity();

// Arithmetic ------------------------------------------------------------------------------------

inline double value_of(uint16_t bf16) {
  const int exponent = (bf16 >> 7) & 255;
  const int mantissa = bf16 & 127;
  const double sign = bf16 & 0x8000 ? -1.0 : 1.0;
  if (exponent == 255) return mantissa != 0 ? std::nan("") : sign * kInf;
  if (exponent == 0) return sign * std::ldexp(mantissa, -133);
  return sign * std::ldexp(mantissa + 128, exponent - 134);
}

// bf16 bits of a double, rounded once.
inline uint16_t rounded(double x) {
  if (std::isnan(x)) return 0x7FC0;
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double a = std::fabs(x);
  if (a == 0) return sign;
  if (std::isinf(a)) return sign | 0x7F80;
  int quantum = std::max(std::ilogb(a) - 7, -133);
  double steps = std::nearbyint(std::ldexp(a, -quantum));  // at most 256
  if (steps == 256) {
    steps = 128;
    ++quantum;
  }
  if (steps < 128) return sign | static_cast<uint16_t>(steps);  // subnormal
  if (quantum > 120) return sign | 0x7F80;
  return sign | static_cast<uint16_t>(((quantum + 134) << 7) + static_cast<int>(steps) - 128);
}

// Non-negative values of the two element types, in the order of their codes.
inline const std::vector<double>& e4m3_values() {
  static const std::vector<double> values = [] {
    std::vector<double> v;
    for (int code = 0; code < 127; ++code) {
      v.push_back(code < 8 ? code / 512.0 : std::ldexp(8 + code % 8, code / 8 - 10));
    }
    return v;
  }();
  return values;
}
inline const std::vector<double>& e2m1_values() {
  static const std::vector<double> values = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return values;
}

inline int nearest(const std::vector<double>& values, double a) {
  // Far above, all distances look equal in double.
  if (a >= values.back()) return static_cast<int>(values.size()) - 1;
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double old_distance = std::fabs(values[best] - a);
    const double distance = std::fabs(values[code] - a);
    if (distance < old_distance || (distance == old_distance && code % 2 == 0)) best = code;
  }
  return best;
}

inline double e4m3_value(int code) {
  if ((code & 127) == 127) return std::nan("");
  return code & 128 ? -e4m3_values()[code & 127] : e4m3_values()[code];
}
inline double e2m1_value(int code) { return code & 8 ? -e2m1_values()[code & 7] : e2m1_values()[code]; }

inline int e4m3_code(double x) { return (std::signbit(x) ? 128 : 0) | nearest(e4m3_values(), std::fabs(x)); }
inline int e2m1_code(double x) {
  return x == 0 ? 0 : (std::signbit(x) ? 8 : 0) | nearest(e2m1_values(), std::fabs(x));
}

// Encoder ---------------------------------------------------------------------------------------

// The largest magnitude of a group, or NaN where the group has no finite one.
inline double largest(const uint16_t* x, int n) {
  double amax = 0;
  for (int i = 0; i < n; ++i) {
    const double a = std::fabs(value_of(x[i]));
    if (!std::isfinite(a)) return std::nan("");
    amax = std::max(amax, a);
  }
  return amax;
}

inline int pow2_exponent(double amax) {
  int e = -14;
  while (std::ldexp(448.0, e) < amax || std::ldexp(1.0, e) < 1e-4) ++e;
  return e;
}

inline int fp4_scale_code(double amax, bool up) {
  const double wanted = std::clamp(amax / 6, std::ldexp(1.0, -9), 448.0);
  if (!up) return nearest(e4m3_values(), wanted);
  int code = 0;
  while (e4m3_values()[code] * 6 < std::min(amax, 2688.0) || e4m3_values()[code] < std::ldexp(1.0, -9))
    ++code;
  return code;
}

// Writes the codes of n columns; gives the exponent, or 255 for NaN.
inline int fp8_codes(const uint16_t* x, int n, uint8_t* codes) {
  const double amax = largest(x, n);
  if (std::isnan(amax)) {
    for (int i = 0; i < n; ++i) codes[i] = x[i] & 0x8000 ? 0x80 : 0x00;
    return 255;
  }
  const int e = pow2_exponent(amax);
  for (int i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(e4m3_code(std::ldexp(value_of(x[i]), -e)));
  return e;
}

struct Fp4Group {
  int scale;
  int codes[16];
};

inline Fp4Group fp4_group(const uint16_t* x, bool up) {
  Fp4Group group{};
  const double amax = largest(x, 16);
  group.scale = std::isnan(amax) ? 0x7F : fp4_scale_code(amax, up);
  for (int i = 0; i < 16; ++i) {
    const int sign = x[i] & 0x8000 ? 8 : 0;
    group.codes[i] = std::isnan(amax) ? sign : e2m1_code(value_of(x[i]) / e4m3_value(group.scale));
  }
  return group;
}

inline void put_bf16(uint8_t* at, const uint16_t* x, int n) {
  for (int i = 0; i < n; ++i) {
    at[2 * i] = static_cast<uint8_t>(x[i] & 255);
    at[2 * i + 1] = static_cast<uint8_t>(x[i] >> 8);
  }
}

inline void put_fp8(const uint16_t* x, int group, int groups, uint8_t* codes, uint8_t* scales, bool fp32) {
  for (int s = 0; s < groups; ++s) {
    const int e = fp8_codes(x + s * group, group, codes + s * group);
    if (!fp32) {
      scales[s] = static_cast<uint8_t>(e == 255 ? 255 : e + 127);
      continue;
    }
    const float value =
        e == 255 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(std::ldexp(1.0, e));
    std::memcpy(scales + 4 * s, &value, 4);
  }
}

inline void put_fp4(const uint16_t* x, int groups, uint8_t* codes, uint8_t* scales, bool up,
                    bool by_quarters) {
  for (int s = 0; s < groups; ++s) {
    const Fp4Group group = fp4_group(x + 16 * s, up);
    for (int i = 0; i < 16; i += 2) {
      codes[8 * s + i / 2] = static_cast<uint8_t>(group.codes[i] + 16 * group.codes[i + 1]);
    }
    scales[by_quarters ? s % 4 * 8 + s / 4 : s] = static_cast<uint8_t>(group.scale);
  }
}

// One token (n) of a page of `page` tokens.
inline void encode(Record record, const uint16_t* x, int d, uint8_t* p, int page, int n) {
  switch (record) {
    case Record::kV32Fp8:
      put_fp8(x, 128, 4, p + 656 * n, p + 656 * n + 512, true);
      return put_bf16(p + 656 * n + 528, x + 512, 64);
    case Record::kV32NopeFp8:
      return put_fp8(x, 128, 4, p + 528 * n, p + 528 * n + 512, true);
    case Record::kV4Fp8:
      put_fp8(x, 64, 7, p + 576 * n, p + 576 * page + 8 * n, false);
      p[576 * page + 8 * n + 7] = 0;
      return put_bf16(p + 576 * n + 448, x + 448, 64);
    case Record::kV41Fp8:
      return put_fp8(x, 32, 16, p + 512 * n, p + 512 * page + 16 * n, false);
    case Record::kV41Fp8Row:
      return put_fp8(x, 32, 16, p + 528 * n, p + 528 * n + 512, false);
    case Record::kV41Fp4:
      return put_fp4(x, 32, p + 256 * n, p + 256 * page + 32 * n, false, false);
    case Record::kV41Fp4Row:
      return put_fp4(x, 32, p + 288 * n, p + 288 * n + 256, false, false);
    case Record::kV41MainFp4: {
      put_fp4(x, 28, p + 224 * n, p + 224 * page + 32 * n, false, false);
      std::memset(p + 224 * page + 32 * n + 28, 0, 4);
      for (int s = 0; s < 4; ++s) {
        const Fp4Group group = fp4_group(x + 448 + 16 * s, false);
        uint16_t y[16];
        for (int i = 0; i < 16; ++i) y[i] = rounded(e2m1_value(group.codes[i]) * e4m3_value(group.scale));
        put_bf16(p + 256 * page + 128 * n + 32 * s, y, 16);
      }
      return;
    }
    case Record::kV32Nvfp4:
      put_fp4(x, 32, p + 352 * n, p + 352 * n + 320, true, true);
      for (int i = 0; i < 64; ++i) {
        const double v = value_of(x[512 + i]);
        p[352 * n + 256 + i] =
            static_cast<uint8_t>(std::isnan(v) ? 0x7F : e4m3_code(std::clamp(v, -448.0, 448.0)));
      }
      return;
    case Record::kBf16:
      return put_bf16(p + 2 * d * n, x, d);
    case Record::kAuto:
      break;
  }
  ADD_FAILURE() << "no such record";
}

}  // namespace tilewise::second
