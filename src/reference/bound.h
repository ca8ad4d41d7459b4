// The one tolerance: how far a kernel may be from the oracle, made from how far the same formula in the
// precision of a good kernel (`rounded`) is.
//
// Rounding moves every softmax weight p_j of a row by a relative amount of its own. Where these amounts have
// the standard deviation delta, column c of the row's output moves, to first order, with the standard
// deviation
//
//   delta * S_c,  S_c = sqrt(sum_j p_j^2 (v_jc - out_c)^2)
//
// over the keys, where out_c and the p_j are what a sink leaves of them (its own weight is exact). The
// largest S_c is the row's sensitivity S. In a row with few weighty keys the error e of `rounded` is one draw
// from that: it may be next to nothing by luck, where the same sums in another order draw an ordinary one. So
// the level delta comes from all rows that are compared together, and a row may be off by
//
//   2 * max(e, delta * S) + an ulp of the output type at the row's largest magnitude
//   delta = sqrt(sum of e^2 / sum of S^2), over the finite rows that have S > 0
//
// A row with a single key and no sink has S = 0, and 2 * e + ulp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::reference {

enum class OutputType { kBF16, kFP16, kFP32 };

/// The type whose ulp is part of the attention's bound where its output goes on in fp32 (the fused
/// operators): that of the attention operators' own outputs. A kernel that goes tile by tile, or by splits,
/// rounds P against other maxima than the row's; where few keys weigh, that alone is more than twice the
/// error of `rounded` plus an ulp of fp32.
inline constexpr OutputType kAttentionOutput = OutputType::kBF16;

/// The type of an output tensor of that dtype.
OutputType output_type(DType dtype);

/// What a comparison found. `worst_ratio` is the largest error / bound; it is infinite where an inf or a NaN
/// is not where the oracle has it. The other members belong to the place of the worst ratio.
struct Comparison {
  bool ok = true;
  double worst_ratio = 0;
  double max_error = 0;  ///< the largest absolute error of all rows
  double bound_at_worst = 0;
  std::string where;  ///< "row 3, column 17: got 1.5, expected 1.25"

  /// Takes note of one value's error; `place` makes the text of where it is.
  template <class Place>
  void note(double error, double bound, const Place& place) {
    max_error = std::max(max_error, error);
    if (!where.empty() && error / bound <= worst_ratio) return;
    worst_ratio = error / bound;
    bound_at_worst = bound;
    where = place();
    ok = ok && error <= bound;
  }

  /// Takes note of a value that no bound allows.
  template <class Place>
  void note_wrong(const Place& place) {
    if (!std::isinf(worst_ratio)) where = place();
    ok = false;
    worst_ratio = std::numeric_limits<double>::infinity();
    bound_at_worst = 0;
  }

  /// Takes in another comparison; `what` goes before its place.
  void merge(const Comparison& other, const std::string& what);
};

/// Distance of neighbouring values of the type around a magnitude.
double ulp(double magnitude, OutputType type);

/// The largest error that each row of `row_length` values may have. `sensitivity` is S, one for each row;
/// where it is not known it is empty, and S counts as 0. NaN for a row in which a value is not finite.
std::vector<double> row_bounds(std::span<const double> oracle, std::span<const double> rounded,
                               std::span<const double> sensitivity, int64_t row_length, OutputType type);

/// Compares rows of `row_length` values. A row in which the oracle has an inf or a NaN is compared in the
/// places of those alone.
Comparison compare_rows(std::span<const float> actual, std::span<const double> oracle,
                        std::span<const double> rounded, std::span<const double> sensitivity,
                        int64_t row_length, OutputType type);
/// The same for results that were merged in double from what a kernel wrote.
Comparison compare_rows(std::span<const double> actual, std::span<const double> oracle,
                        std::span<const double> rounded, std::span<const double> sensitivity,
                        int64_t row_length, OutputType type);

/// Compares lse or max_logits value by value: 1e-5 + 4/65536 of the magnitude.
Comparison compare_logs(std::span<const float> actual, std::span<const double> oracle);
Comparison compare_logs(std::span<const double> actual, std::span<const double> oracle);

}  // namespace tilewise::reference
