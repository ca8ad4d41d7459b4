// The tolerance of gradients.
#include "reference/gradient_bound.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "core/numeric.h"

namespace tilewise::reference {
namespace {

constexpr double kOfRounded = 1.5;
// Where noise is less than that part of a gradient, it cannot take the cosine below the ones asked for.
constexpr double kNoiseOfADirection = 1e-3;

double rounded_to(double x, OutputType type) {
  const float single = static_cast<float>(x);
  switch (type) {
    case OutputType::kBF16:
      return bf16_bits_to_f32(f32_to_bf16_bits(single));
    case OutputType::kFP16:
      return f16_bits_to_f32(f32_to_f16_bits(single));
    case OutputType::kFP32:
      break;
  }
  return single;
}

// Sums over the finite rows.
struct Sums {
  double oracle = 0;   // squares
  double actual = 0;   // squares
  double product = 0;  // of both
  double error = 0;    // squares, of actual
  double rounded = 0;  // squares of the error of `rounded` in the output type
  double of_type = 0;  // squares of the error of the oracle itself in that type
  double largest = 0;  // error of one value
  size_t largest_at = 0;

  void add(size_t i, double value, double expected, double by_rounded, double nearest) {
    const double off = value - expected;
    oracle += expected * expected;
    actual += value * value;
    product += value * expected;
    error += off * off;
    rounded += (by_rounded - expected) * (by_rounded - expected);
    of_type += (nearest - expected) * (nearest - expected);
    if (std::fabs(off) >= largest) {
      largest = std::fabs(off);
      largest_at = i;
    }
  }
  double cosine() const { return oracle > 0 && actual > 0 ? product / std::sqrt(oracle * actual) : 0; }
};

std::string place(size_t i, const GradientTensor& oracle, double actual) {
  const size_t length = static_cast<size_t>(oracle.row_length);
  return fmt::format("row {}, column {}: got {:.9g}, expected {:.9g}", i / length, i % length, actual,
                     oracle.values[i]);
}

void check_sizes(size_t actual, const GradientTensor& oracle, const GradientTensor& rounded) {
  const size_t values = oracle.reached.size() * static_cast<size_t>(oracle.row_length);
  if (actual == values && oracle.values.size() == values && rounded.values.size() == values) return;
  throw std::invalid_argument(fmt::format("reference: {} gradients to compare with {} and {}", actual,
                                          oracle.values.size(), rounded.values.size()));
}

bool same_kind(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return true;
}

// Whether the row goes into the sums; notes what no bound allows.
bool compare_places(std::span<const float> actual, const GradientTensor& oracle,
                    const GradientTensor& rounded, OutputType type, size_t row, Comparison& found) {
  const size_t length = static_cast<size_t>(oracle.row_length);
  bool finite = true;
  for (size_t i = row * length; i < (row + 1) * length; ++i) {
    const double expected = rounded_to(oracle.values[i], type);
    const bool zero_wanted = oracle.reached[row] == 0;
    // Where the formula itself leaves the range of its types, no bound can be made.
    const bool no_bound = std::isfinite(expected) && !std::isfinite(rounded_to(rounded.values[i], type));
    if (no_bound || !same_kind(actual[i], expected) || (zero_wanted && actual[i] != 0)) {
      found.note_wrong([&] { return place(i, oracle, actual[i]); });
      finite = false;
    }
    finite = finite && std::isfinite(expected);
  }
  return finite;
}

}  // namespace

Comparison compare_gradient(std::span<const float> actual, const GradientTensor& oracle,
                            const GradientTensor& rounded, OutputType type, double cosine) {
  check_sizes(actual.size(), oracle, rounded);
  Comparison found;
  Sums sums;
  const size_t length = static_cast<size_t>(oracle.row_length);
  for (size_t row = 0; row < oracle.reached.size(); ++row) {
    if (!compare_places(actual, oracle, rounded, type, row, found)) continue;
    if (oracle.reached[row] == 0) continue;
    for (size_t i = row * length; i < (row + 1) * length; ++i) {
      sums.add(i, actual[i], oracle.values[i], rounded_to(rounded.values[i], type),
               rounded_to(oracle.values[i], type));
    }
  }
  const double size = std::sqrt(sums.oracle);
  const double error = std::sqrt(sums.error);
  const double bound = kOfRounded * std::max(std::sqrt(sums.rounded), oracle.draw) + oracle.noise;
  const auto where = [&] {
    return fmt::format("relative error {:.3g}, at most {:.3g}; cosine 1 - {:.3g}, at least 1 - {:.3g}; {}",
                       error / size, bound / size, 1 - sums.cosine(), 1 - cosine,
                       place(sums.largest_at, oracle, actual[sums.largest_at]));
  };
  if (size == 0 && error == 0) return found;
  // Values far below a type's normal ones (float16: 6e-5) turn by being stored: an error of e turns by e^2
  // / 2.
  const bool type_has_it = sums.of_type < (1 - cosine) * sums.oracle;
  const bool has_direction = size > 0 && type_has_it && oracle.noise < kNoiseOfADirection * size;
  if (has_direction && !(sums.cosine() >= cosine)) found.note_wrong(where);
  found.note(error, bound, where);
  return found;
}

}  // namespace tilewise::reference
