// The tolerance of every comparison with the oracle.
#include "reference/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>

namespace tilewise::reference {
namespace {

struct FloatFormat {
  int mantissa_bits;
  int smallest_exponent;  // of the normal numbers
  double largest;
};

FloatFormat format_of(OutputType type) {
  switch (type) {
    case OutputType::kBF16:
      return {7, -126, 0x1.FEp127};
    case OutputType::kFP16:
      return {10, -14, 65504};
    case OutputType::kFP32:
      break;
  }
  return {23, -126, std::numeric_limits<float>::max()};
}

// What must agree exactly: NaN, either infinity, or a finite value.
enum class Kind { kFinite, kPlusInfinity, kMinusInfinity, kNan };

Kind kind_of(double x) {
  if (std::isnan(x)) return Kind::kNan;
  if (std::isfinite(x)) return Kind::kFinite;
  return x > 0 ? Kind::kPlusInfinity : Kind::kMinusInfinity;
}

// The kind that x has after rounding to the type.
Kind kind_of(double x, OutputType type) {
  const double largest = format_of(type).largest;
  if (std::isfinite(x) && std::fabs(x) >= largest + ulp(largest, type) / 2) x = std::copysign(HUGE_VAL, x);
  return kind_of(x);
}

std::string place(size_t i, size_t row_length, double actual, double oracle) {
  return fmt::format("row {}, column {}: got {:.9g}, expected {:.9g}", i / row_length, i % row_length, actual,
                     oracle);
}

void check_sizes(size_t actual, size_t oracle, size_t rounded) {
  if (actual == oracle && actual == rounded) return;
  throw std::invalid_argument(
      fmt::format("reference: {} values to compare with {} and {}", actual, oracle, rounded));
}

// What a row's bound is made of.
struct RowFacts {
  bool finite = true;
  double magnitude = 0;  // the oracle's largest
  double error = 0;      // the largest of `rounded`
};

RowFacts facts_of(std::span<const double> oracle, std::span<const double> rounded) {
  RowFacts row;
  for (size_t i = 0; i < oracle.size(); ++i) {
    row.finite = row.finite && std::isfinite(oracle[i]) && std::isfinite(rounded[i]);
    row.magnitude = std::max(row.magnitude, std::fabs(oracle[i]));
    row.error = std::max(row.error, std::fabs(rounded[i] - oracle[i]));
  }
  return row;
}

// delta. Rows without a sensitivity have errors that no weight's rounding explains.
double level_of(std::span<const RowFacts> rows, std::span<const double> sensitivity) {
  double errors = 0;
  double sensitivities = 0;
  for (size_t r = 0; r < sensitivity.size(); ++r) {
    if (!rows[r].finite || sensitivity[r] == 0) continue;
    errors += rows[r].error * rows[r].error;
    sensitivities += sensitivity[r] * sensitivity[r];
  }
  return sensitivities > 0 ? std::sqrt(errors / sensitivities) : 0;
}

template <class Actual>
Comparison compare_rows_as(std::span<const Actual> actual, std::span<const double> oracle,
                           std::span<const double> rounded, std::span<const double> sensitivity,
                           int64_t row_length, OutputType type) {
  check_sizes(actual.size(), oracle.size(), rounded.size());
  const std::vector<double> bounds = row_bounds(oracle, rounded, sensitivity, row_length, type);
  Comparison found;
  const size_t length = static_cast<size_t>(row_length);
  for (size_t first = 0; first < actual.size(); first += length) {
    bool finite = true;
    for (size_t i = first; i < first + length; ++i) {
      const Kind kind = kind_of(oracle[i], type);
      finite = finite && kind == Kind::kFinite;
      // Where the formula itself leaves fp32's range, no bound can be made.
      const bool no_bound = kind == Kind::kFinite && !std::isfinite(rounded[i]);
      if (no_bound || kind != kind_of(actual[i])) {
        found.note_wrong([&] { return place(i, length, actual[i], oracle[i]); });
        finite = false;
      }
    }
    if (!finite) continue;
    for (size_t i = first; i < first + length; ++i) {
      found.note(std::fabs(actual[i] - oracle[i]), bounds[first / length],
                 [&] { return place(i, length, actual[i], oracle[i]); });
    }
  }
  return found;
}

template <class Actual>
Comparison compare_logs_as(std::span<const Actual> actual, std::span<const double> oracle) {
  check_sizes(actual.size(), oracle.size(), oracle.size());
  Comparison found;
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto here = [&] { return place(i, 1, actual[i], oracle[i]); };
    const Kind kind = kind_of(oracle[i], OutputType::kFP32);
    if (kind != kind_of(actual[i])) {
      found.note_wrong(here);
    } else if (kind == Kind::kFinite) {
      found.note(std::fabs(actual[i] - oracle[i]), 1e-5 + 4.0 / 65536 * std::fabs(oracle[i]), here);
    }
  }
  return found;
}

}  // namespace

OutputType output_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return OutputType::kBF16;
    case DType::kFP16:
      return OutputType::kFP16;
    case DType::kFP32:
      return OutputType::kFP32;
    default:
      throw std::invalid_argument(fmt::format("reference: no output type {}", to_string(dtype)));
  }
}

void Comparison::merge(const Comparison& other, const std::string& what) {
  max_error = std::max(max_error, other.max_error);
  ok = ok && other.ok;
  if (!where.empty() && other.worst_ratio <= worst_ratio) return;
  worst_ratio = other.worst_ratio;
  bound_at_worst = other.bound_at_worst;
  where = other.where.empty() ? "" : what + ", " + other.where;
}

double ulp(double magnitude, OutputType type) {
  const FloatFormat format = format_of(type);
  int exponent = format.smallest_exponent;
  if (magnitude > 0) exponent = std::max(exponent, std::ilogb(magnitude));
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

std::vector<double> row_bounds(std::span<const double> oracle, std::span<const double> rounded,
                               std::span<const double> sensitivity, int64_t row_length, OutputType type) {
  const size_t length = static_cast<size_t>(row_length);
  std::vector<RowFacts> rows;
  for (size_t first = 0; first < oracle.size(); first += length) {
    rows.push_back(facts_of(oracle.subspan(first, length), rounded.subspan(first, length)));
  }
  if (!sensitivity.empty() && sensitivity.size() != rows.size()) {
    throw std::invalid_argument(
        fmt::format("reference: {} sensitivities of {} rows", sensitivity.size(), rows.size()));
  }
  const double level = level_of(rows, sensitivity);
  std::vector<double> bounds;
  for (size_t r = 0; r < rows.size(); ++r) {
    const double typical = sensitivity.empty() ? 0 : level * sensitivity[r];
    const double bound = 2 * std::max(rows[r].error, typical) + ulp(rows[r].magnitude, type);
    bounds.push_back(rows[r].finite ? bound : std::numeric_limits<double>::quiet_NaN());
  }
  return bounds;
}

Comparison compare_rows(std::span<const float> actual, std::span<const double> oracle,
                        std::span<const double> rounded, std::span<const double> sensitivity,
                        int64_t row_length, OutputType type) {
  return compare_rows_as(actual, oracle, rounded, sensitivity, row_length, type);
}

Comparison compare_rows(std::span<const double> actual, std::span<const double> oracle,
                        std::span<const double> rounded, std::span<const double> sensitivity,
                        int64_t row_length, OutputType type) {
  return compare_rows_as(actual, oracle, rounded, sensitivity, row_length, type);
}

Comparison compare_logs(std::span<const float> actual, std::span<const double> oracle) {
  return compare_logs_as(actual, oracle);
}

Comparison compare_logs(std::span<const double> actual, std::span<const double> oracle) {
  return compare_logs_as(actual, oracle);
}

}  // namespace tilewise::reference
