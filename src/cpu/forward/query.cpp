#include "cpu/forward/query.h"

#include <algorithm>
#include <cmath>

#include "core/float_value.h"

namespace tilewise::cpu {
namespace {

const float* cos_sin_of(const ForwardProblem& problem, int64_t token) {
  const int64_t position = problem.positions[token * problem.positions_stride];
  return problem.cos_sin +
         std::clamp<int64_t>(position, 0, problem.shape.max_pos - 1) * problem.cos_sin_stride;
}

float sink_bias_of(const ForwardProblem& problem, int64_t head) {
  return float_value(problem.sink_bias, problem.shape.sink_bias_dtype, head * problem.sink_bias_stride);
}

/// Multiplies by the factor and, in fused operators, turns the output back. A row without weight becomes +0
/// whatever its accumulators met; turning that would make some of its zeros negative.
void finish_output(const Isa& isa, const ForwardProblem& problem, int64_t token, float factor, float* o) {
  if (factor == 0.0f) {
    std::fill_n(o, problem.shape.d_v, 0.0f);
    return;
  }
  isa.rows->multiply(o, problem.shape.d_v, factor);
  if (problem.shape.fused) isa.rows->rotate(o + kFusedDim - kRopeDim, cos_sin_of(problem, token), true);
}

void store_fused(const Isa& isa, const ForwardProblem& problem, int64_t token, int64_t head, const float* o) {
  if (problem.out_bf16.data != nullptr) {
    isa.rows->narrow(o, kFusedDim, DType::kBF16, problem.out_bf16.at(0, token, head));
  }
  if (problem.out_fp8 == nullptr) return;
  store_fp8_row(isa, o, fp8_destination(problem, token, head));
}

}  // namespace

const BF16* queries_in_place(const ForwardProblem& problem, const QueryTile& tile) {
  const ForwardShape& shape = problem.shape;
  if (shape.fused || shape.q_dtype != DType::kBF16) return nullptr;
  const auto at = [&](int64_t row) {
    return tile.token(row) * problem.q_stride_s + tile.head(row) * problem.q_stride_h;
  };
  for (int64_t r = 1; r < tile.rows(); ++r) {
    if (at(r) - at(r - 1) != shape.d_qk) return nullptr;
  }
  return static_cast<const BF16*>(problem.q) + tile.request * problem.q_stride_b + at(0);
}

void load_scales(const ForwardProblem& problem, const QueryTile& tile, float* scale) {
  float common = problem.shape.softmax_scale;
  if (problem.descale_q != nullptr) common *= problem.descale_q[0] * problem.descale_k[0];
  std::fill_n(scale, tile.rows(), common);
  std::fill(scale + tile.rows(), scale + padded_rows(tile.rows()), 0.0f);
}

void load_queries(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, float* q,
                  float* scale) {
  const ForwardShape& shape = problem.shape;
  load_scales(problem, tile, scale);
  const int64_t element = size_of(shape.q_dtype);
  for (int64_t r = 0; r < tile.rows(); ++r) {
    const int64_t token = tile.token(r);
    const int64_t head = tile.head(r);
    float* row = q + r * shape.d_qk;
    const int64_t token_at = tile.request * problem.q_stride_b + token * problem.q_stride_s;
    if (!shape.fused) {
      const int64_t at = token_at + head * problem.q_stride_h;
      isa.rows->widen(static_cast<const uint8_t*>(problem.q) + at * element, shape.q_dtype, shape.d_qk, row);
      continue;
    }
    isa.rows->unpermute(static_cast<const BF16*>(problem.q) + token_at, shape.h_q, head, row);
    if (shape.q_norm) {
      const float mean = isa.rows->sum_of_squares(row, kFusedDim) / static_cast<float>(kFusedDim);
      scale[r] *= 1.0f / std::sqrt(mean + shape.q_norm_eps);
    }
    float* rope = row + kFusedDim - kRopeDim;
    isa.rows->rotate(rope, cos_sin_of(problem, token), false);
    isa.rows->round_to_bf16(rope, kRopeDim);
  }
}

void store_row(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, int64_t row,
               const softmax::RowState& state, const softmax::RowState* prefix, float* o) {
  const ForwardShape& shape = problem.shape;
  const int64_t token = tile.token(row);
  const int64_t head = tile.head(row);
  const softmax::RowResult result = shape.has_sink_bias
                                        ? softmax::finish_with_sink_bias(state, sink_bias_of(problem, head))
                                        : softmax::finish(state);
  float factor = result.scale;
  // A row without weight stays 0 whatever the sink and the scales are.
  if (shape.has_sink && factor != 0.0f)
    factor *= softmax::sink_factor(result.lse, problem.sink[head * problem.sink_stride]);
  if (problem.descale_k != nullptr && factor != 0.0f) factor *= problem.descale_k[0];
  finish_output(isa, problem, token, factor, o);

  if (problem.lse.data != nullptr) *problem.lse.at(tile.request, token, head) = result.lse;
  if (problem.max_logits.data != nullptr)
    *problem.max_logits.at(tile.request, token, head) = result.max_logit;
  if (prefix != nullptr) *problem.lse_indexer.at(tile.request, token, head) = softmax::finish(*prefix).lse;
  if (shape.epilogue == Epilogue::kFp8) {
    store_fused(isa, problem, token, head, o);
  } else {
    isa.rows->narrow(o, shape.d_v, shape.out_dtype, problem.out.at(tile.request, token, head));
  }
}

void store_partial_row(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, int64_t row,
                       int64_t split, const softmax::RowState& state, float* o) {
  const int64_t token = tile.token(row);
  const int64_t head = tile.head(row);
  const softmax::RowResult result = softmax::finish(state);
  finish_output(isa, problem, token, result.scale, o);
  isa.rows->narrow(o, kFusedDim, DType::kFP32,
                   problem.out.at(0, token, head) + split * problem.split_stride_out);
  const bool empty = softmax::is_lonely(state);
  *(problem.lse.at(0, token, head) + split * problem.split_stride_lse) =
      empty ? -softmax::kInfinity : softmax::lse_to_base2(result.lse);
}

void store_fp8_row(const Isa& isa, const float* x, const Fp8Destination& to) {
  uint8_t exponents[kCastGroups];
  isa.rows->cast_fp8(x, to.codes + to.head * kCastGroup, to.group_size * kCastGroup, exponents);
  for (int64_t j = 0; j < kCastGroups; ++j) {
    const int64_t place = j * to.group_size + to.head;
    to.exponents[place / 4 * to.sf_column_stride + place % 4] = exponents[j];
  }
}

}  // namespace tilewise::cpu
