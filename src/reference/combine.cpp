// The oracle of merging partial results.
#include "reference/combine.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "reference/attend.h"
#include "reference/views.h"

namespace tilewise::reference {
namespace {

template <class Real>
void combine_row(const CombineCommon& args, int64_t s, int64_t h, int64_t row, AttentionResult& result) {
  const TensorView& partials = args.out_partials;
  const TensorView& partial_lse = args.lse_partials;
  std::vector<int64_t> used;
  std::vector<Real> logs;
  for (int64_t i = 0; i < partials.size(0); ++i) {
    float stored = 0;
    read_floats(partial_lse,
                i * partial_lse.stride(0) + s * partial_lse.stride(1) + h * partial_lse.stride(2), 1,
                &stored);
    if (std::isinf(stored)) continue;
    used.push_back(i);
    logs.push_back(args.base2 ? static_cast<Real>(stored) * std::numbers::ln2_v<Real> : stored);
  }

  const LogSum<Real> sum = log_sum(logs.data(), static_cast<int64_t>(logs.size()));
  const Real lse = sum.lse();
  result.lse[static_cast<size_t>(row)] = lse;
  std::vector<Real> out(static_cast<size_t>(result.d_v));
  std::vector<float> partial(out.size());
  for (size_t k = 0; k < used.size(); ++k) {
    const int64_t at = used[k] * partials.stride(0) + s * partials.stride(1) + h * partials.stride(2);
    read_floats(partials, at, result.d_v, partial.data());
    const Real weight = std::exp(logs[k] - lse);
    for (size_t c = 0; c < out.size(); ++c) out[c] += weight * partial[c];
  }
  const bool scaled = args.attn_sink && sum.kind == RowKind::kOrdinary;
  const Real factor = scaled ? sink_factor<Real>(lse, float_at(args.attn_sink, h)) : 1;
  for (size_t c = 0; c < out.size(); ++c) {
    result.out[static_cast<size_t>(row * result.d_v) + c] = out[c] * factor;
  }
}

}  // namespace

AttentionResult combine(const CombineCommon& args, Arithmetic arithmetic) {
  AttentionResult result;
  result.s_q = args.out_partials.size(1);
  result.h_q = args.out_partials.size(2);
  result.d_v = args.out_partials.size(3);
  const int64_t rows = result.rows();
  result.out.resize(static_cast<size_t>(rows * result.d_v));
  result.lse.resize(static_cast<size_t>(rows));
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t s = row / result.h_q;
    const int64_t h = row % result.h_q;
    if (arithmetic == Arithmetic::kDouble) {
      combine_row<double>(args, s, h, row, result);
    } else {
      combine_row<float>(args, s, h, row, result);
    }
  }
  return result;
}

Comparison compare_partials(const FusedDecodePartialsArgs& args, const AttentionResult& oracle,
                            const AttentionResult& rounded) {
  CombineCommon parts;
  parts.out_partials = args.o_accum;
  parts.lse_partials = args.lse_accum;
  parts.base2 = true;
  const AttentionResult merged = combine(parts, Arithmetic::kDouble);

  Comparison found;
  found.merge(
      compare_rows(merged.out, oracle.out, rounded.out, oracle.sensitivity, oracle.d_v, kAttentionOutput),
      "merged out");
  found.merge(compare_logs(merged.lse, oracle.lse), "merged lse");

  const std::vector<float> lse = to_floats(args.lse_accum);
  const std::vector<float> out = to_floats(args.o_accum);
  for (size_t i = 0; i < lse.size(); ++i) {
    if (!std::isinf(lse[i])) continue;
    const auto row = out.begin() + static_cast<int64_t>(i) * oracle.d_v;
    const bool zeros = std::all_of(row, row + oracle.d_v, [](float x) { return x == 0; });
    if (lse[i] < 0 && zeros) continue;
    const auto place = [&] {
      return fmt::format("row {} of the partials: lse {} with {}", i, lse[i], zeros ? "zeros" : "values");
    };
    found.note_wrong(place);
  }
  return found;
}

}  // namespace tilewise::reference
