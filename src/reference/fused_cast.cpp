// The oracle of the fused operators' cast.
#include "reference/fused_cast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include <fmt/format.h>

#include "reference/small_floats.h"

namespace tilewise::reference {
namespace {

constexpr int64_t kChannels = 512;
constexpr int64_t kGroup = 32;
constexpr int kLonelyByte = 105;

// Where a head's channels lie among the codes and exponent bytes of a token's head group.
struct Place {
  int64_t token;
  int64_t head_group;
  int64_t index;  // of the head in its group
  int64_t size;   // heads in a group

  int64_t group(int64_t channel) const { return channel / kGroup * size + index; }
  int64_t code(int64_t channel) const { return group(channel) * kGroup + channel % kGroup; }
};

Place place_of(int64_t token, int64_t head, int64_t h_q, int64_t n_groups) {
  const int64_t size = h_q / n_groups;
  return {token, head / size, head % size, size};
}

int exponent_byte(double amax) {
  const double floored = std::clamp<double>(amax, 1e-4f, std::numeric_limits<float>::max());
  return 127 + ceil_log2(floored / 448);
}

double largest(std::span<const double> values) {
  double amax = 0;
  for (double x : values) {
    if (!std::isnan(x)) amax = std::max(amax, std::fabs(x));
  }
  return amax;
}

double scale_of(int byte) { return std::ldexp(1.0, byte - 127); }

bool is_nan_code(uint8_t code) { return (code & 0x7F) == kE4m3NanCode; }

// One head's output as a kernel wrote it, in the order of channels.
struct CastRow {
  uint8_t codes[kChannels];
  int bytes[kChannels / kGroup];
};

CastRow read_row(const TensorView& out_fp8, const TensorView& out_sf, const Place& at) {
  CastRow row{};
  const int64_t code0 = at.token * out_fp8.stride(0) + at.head_group * out_fp8.stride(1);
  const int64_t scale0 = at.token * out_sf.stride(0) + at.head_group * out_sf.stride(1);
  for (int64_t c = 0; c < kChannels; ++c) row.codes[c] = out_fp8.data_as<uint8_t>()[code0 + at.code(c)];
  for (int64_t c = 0; c < kChannels; c += kGroup) {
    const int64_t group = at.group(c);
    const int32_t word = out_sf.data_as<int32_t>()[scale0 + group / 4 * out_sf.stride(2)];
    row.bytes[c / kGroup] = static_cast<int>((static_cast<uint32_t>(word) >> (8 * (group % 4))) & 255);
  }
  return row;
}

void compare_lonely(const CastRow& row, const std::string& who, Comparison& found) {
  for (int64_t c = 0; c < kChannels; ++c) {
    const int code = row.codes[c];
    const int byte = row.bytes[c / kGroup];
    if (code == 0 && byte == kLonelyByte) continue;
    found.note_wrong([&] {
      return fmt::format("{}, channel {}: a lonely row has code {:#04x} and byte {}", who, c, code, byte);
    });
  }
}

// Returns whether the row has no NaN and so can be compared further.
bool compare_nan(const CastRow& row, std::span<const double> oracle, const std::string& who,
                 Comparison& found) {
  bool comparable = true;
  for (int64_t c = 0; c < kChannels; ++c) {
    const bool nan = std::isnan(oracle[static_cast<size_t>(c)]);
    const bool right = nan ? row.codes[c] == kE4m3NanCode : !is_nan_code(row.codes[c]);
    comparable = comparable && right && !nan;
    if (right) continue;
    found.note_wrong([&] {
      return fmt::format("{}, channel {}: code {:#04x}, expected {}", who, c, row.codes[c],
                         nan ? "0x7f" : "a number");
    });
  }
  return comparable;
}

void compare_group(const CastRow& row, int64_t first, std::span<const double> oracle, double bound,
                   const std::string& who, Comparison& found) {
  const double amax = largest(oracle.subspan(static_cast<size_t>(first), kGroup));
  const int expected_byte = exponent_byte(amax);
  const int byte = row.bytes[first / kGroup];
  if (byte < exponent_byte(amax - bound) || byte > exponent_byte(amax + bound)) {
    found.note_wrong([&] {
      return fmt::format("{}, channels {}..: exponent byte {}, expected {} (amax {:.9g}, bound {:.3g})", who,
                         first, byte, expected_byte, amax, bound);
    });
    return;
  }
  const E4m3& e4m3 = E4m3::get();
  for (int64_t c = first; c < first + kGroup; ++c) {
    const double x = oracle[static_cast<size_t>(c)];
    const double expected = e4m3.value(to_e4m3(x / scale_of(expected_byte))) * scale_of(expected_byte);
    const double actual = e4m3.value(row.codes[c]) * scale_of(byte);
    const double step =
        std::max(e4m3.step(std::fabs(expected) / scale_of(expected_byte)) * scale_of(expected_byte),
                 e4m3.step(std::fabs(actual) / scale_of(byte)) * scale_of(byte));
    found.note(std::fabs(actual - expected), bound + step, [&] {
      return fmt::format("{}, channel {}: got {:.9g}, expected {:.9g}", who, c, actual, expected);
    });
  }
}

}  // namespace

FusedCast fused_cast(const AttentionResult& result, int64_t n_groups) {
  const int64_t heads = result.h_q / n_groups;
  FusedCast cast;
  cast.codes.resize(static_cast<size_t>(result.rows() * kChannels));
  cast.scales.resize(static_cast<size_t>(result.rows() * kChannels / (4 * kGroup)));
  for (int64_t s = 0; s < result.s_q; ++s) {
    for (int64_t h = 0; h < result.h_q; ++h) {
      const Place at = place_of(s, h, result.h_q, n_groups);
      const int64_t head_group = s * n_groups + at.head_group;
      uint8_t* codes = cast.codes.data() + head_group * heads * kChannels;
      int32_t* scales = cast.scales.data() + head_group * heads * kChannels / (4 * kGroup);
      const double* values = result.out.data() + result.row(0, s, h) * kChannels;
      for (int64_t first = 0; first < kChannels; first += kGroup) {
        const int byte = exponent_byte(largest({values + first, kGroup}));
        const int64_t group = at.group(first);
        const uint32_t packed = static_cast<uint32_t>(byte) << (8 * (group % 4));
        scales[group / 4] = static_cast<int32_t>(static_cast<uint32_t>(scales[group / 4]) | packed);
        for (int64_t c = first; c < first + kGroup; ++c)
          codes[at.code(c)] = to_e4m3(values[c] / scale_of(byte));
      }
    }
  }
  return cast;
}

Comparison compare_fused(const TensorView& out_fp8, const TensorView& out_sf, const AttentionResult& oracle,
                         const AttentionResult& rounded, int64_t n_groups) {
  Comparison found;
  const std::vector<double> bounds =
      row_bounds(oracle.out, rounded.out, oracle.sensitivity, kChannels, kAttentionOutput);
  for (int64_t s = 0; s < oracle.s_q; ++s) {
    for (int64_t h = 0; h < oracle.h_q; ++h) {
      const std::string who = fmt::format("token {}, head {}", s, h);
      const CastRow row = read_row(out_fp8, out_sf, place_of(s, h, oracle.h_q, n_groups));
      const size_t at = static_cast<size_t>(oracle.row(0, s, h));
      if (oracle.lse[at] == HUGE_VAL) {
        compare_lonely(row, who, found);
        continue;
      }
      const std::span<const double> values(oracle.out.data() + at * kChannels, kChannels);
      if (!compare_nan(row, values, who, found)) continue;
      if (!std::isfinite(bounds[at])) {
        found.note_wrong([&] { return who + ": the formula leaves the range of fp32"; });
        continue;
      }
      for (int64_t first = 0; first < kChannels; first += kGroup) {
        compare_group(row, first, values, bounds[at], who, found);
      }
    }
  }
  return found;
}

}  // namespace tilewise::reference
