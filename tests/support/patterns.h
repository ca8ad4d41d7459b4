// Patterns for memory that a call may not depend on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cases/memory.h"
#include "cases/random.h"
#include "tilewise/tensor.h"

namespace tilewise::testing {

enum class Fill {
  kZeros,
  kNan,       // all bits set: NaN in every float type, -1 in integers
  kInfinity,  // +inf; the largest value where a type has no infinity
  kRandom,
};

inline constexpr std::array kPoisons = {Fill::kNan, Fill::kInfinity, Fill::kRandom};

inline const char* name_of(Fill fill) {
  switch (fill) {
    case Fill::kZeros:
      return "zeros";
    case Fill::kNan:
      return "NaN";
    case Fill::kInfinity:
      return "+inf";
    case Fill::kRandom:
      return "random bytes";
  }
  return "";
}

/// One element of a type at its largest, little-endian; shorter types repeat it.
inline std::array<uint8_t, 4> largest_bytes(DType type) {
  switch (type) {
    case DType::kFP32:
      return {0x00, 0x00, 0x80, 0x7F};
    case DType::kBF16:
      return {0x80, 0x7F, 0x80, 0x7F};
    case DType::kFP16:
      return {0x00, 0x7C, 0x00, 0x7C};
    case DType::kE4M3:
      return {0x7E, 0x7E, 0x7E, 0x7E};
    case DType::kUE8M0:
      return {0xFE, 0xFE, 0xFE, 0xFE};
    case DType::kE2M1x2:
      return {0x77, 0x77, 0x77, 0x77};
    default:
      return {0xFF, 0xFF, 0xFF, 0x7F};
  }
}

/// `bytes` must begin at an element of the type.
inline void fill_bytes(std::span<uint8_t> bytes, DType type, Fill fill, uint64_t seed = 0) {
  const std::array<uint8_t, 4> largest = largest_bytes(type);
  const cases::Stream64 random{seed};
  for (size_t i = 0; i < bytes.size(); ++i) {
    switch (fill) {
      case Fill::kZeros:
        bytes[i] = 0;
        break;
      case Fill::kNan:
        bytes[i] = 0xFF;
        break;
      case Fill::kInfinity:
        bytes[i] = largest[i % 4];
        break;
      case Fill::kRandom:
        bytes[i] = static_cast<uint8_t>(random.bits(i));
        break;
    }
  }
}

/// All elements of a view.
inline void fill_elements(const TensorView& view, Fill fill, uint64_t seed = 0) {
  cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
    fill_bytes({run, static_cast<size_t>(n)}, view.dtype(), fill, seed++);
  });
}

/// Writes elements, one run after another, in the order of cases::contents.
inline void write_contents(const TensorView& view, const std::vector<uint8_t>& bytes) {
  const uint8_t* from = bytes.data();
  cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
    std::copy_n(from, n, run);
    from += n;
  });
}

}  // namespace tilewise::testing
