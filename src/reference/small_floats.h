// The oracle's own 8-bit and 4-bit floats, defined by their fields and rounded by searching all values.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tilewise::reference {

// Magnitudes of a float with few bits; bit patterns without the sign grow with the value.
template <int kExponentBits, int kMantissaBits, int kLargestCode>
class SmallFloat {
 public:
  static constexpr int kSignBit = 1 << (kExponentBits + kMantissaBits);

  static const SmallFloat& get() {
    static const SmallFloat instance;
    return instance;
  }

  // A code with its sign bit; codes past the largest are NaN.
  float value(int code) const { return signed_values_[static_cast<size_t>(code)]; }

  // Nearest magnitude code of x >= 0, ties to the even code, saturating. x must be no NaN.
  int nearest(double x) const {
    const int above = not_below(x);
    if (above == 0 || magnitude(above) <= x) return above;
    const double down = x - magnitude(above - 1);
    const double up = magnitude(above) - x;
    if (down != up) return down < up ? above - 1 : above;
    return above % 2 == 0 ? above : above - 1;
  }

  // Smallest magnitude code whose value is not below x; the largest code where there is none.
  int not_below(double x) const {
    const auto begin = magnitudes_.begin();
    const auto found = std::lower_bound(begin, magnitudes_.end(), x);
    return found == magnitudes_.end() ? kLargestCode : static_cast<int>(found - begin);
  }

  // Distance between the two neighbouring values around the magnitude x.
  double step(double x) const {
    const int code = std::clamp(not_below(x), 1, kLargestCode);
    return magnitude(code) - magnitude(code - 1);
  }

  double magnitude(int code) const { return magnitudes_[static_cast<size_t>(code)]; }

 private:
  SmallFloat() {
    constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
    for (int code = 0; code <= kLargestCode; ++code) {
      const int exponent = code >> kMantissaBits;
      const int mantissa = code & ((1 << kMantissaBits) - 1);
      const int implicit = exponent == 0 ? 0 : 1 << kMantissaBits;
      magnitudes_[static_cast<size_t>(code)] =
          std::ldexp(implicit + mantissa, std::max(exponent, 1) - kBias - kMantissaBits);
    }
    for (int code = 0; code < 2 * kSignBit; ++code) {
      const int unsigned_code = code & (kSignBit - 1);
      const double size =
          unsigned_code <= kLargestCode ? magnitude(unsigned_code) : std::numeric_limits<double>::quiet_NaN();
      signed_values_[static_cast<size_t>(code)] = static_cast<float>((code & kSignBit) != 0 ? -size : size);
    }
  }

  std::array<double, kLargestCode + 1> magnitudes_{};
  std::array<float, size_t{2} * kSignBit> signed_values_{};
};

using E4m3 = SmallFloat<4, 3, 0x7E>;
using E2m1 = SmallFloat<2, 1, 7>;

inline constexpr uint8_t kE4m3NanCode = 0x7F;

// e4m3 of any float: saturating, a zero keeps its sign, every NaN is 0x7F.
inline uint8_t to_e4m3(double x) {
  if (std::isnan(x)) return kE4m3NanCode;
  const int sign = std::signbit(x) ? E4m3::kSignBit : 0;
  return static_cast<uint8_t>(sign | E4m3::get().nearest(std::fabs(x)));
}

// The n of the smallest power of two 2^n that is not below x > 0.
inline int ceil_log2(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // x = fraction * 2^exponent, fraction in [1/2, 1)
  return fraction == 0.5 ? exponent - 1 : exponent;
}

}  // namespace tilewise::reference
