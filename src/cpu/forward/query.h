// Prologue and epilogue of a query tile: Q rows to fp32 operands of the scores, finished rows to the outputs.
#pragma once

#include <cstdint>

#include "cpu/forward/cut.h"
#include "cpu/isa.h"
#include "ops/forward.h"
#include "softmax/state.h"

namespace tilewise::cpu {

/// q [rows][d_qk]: the tile's queries, rotated and rounded to bf16 where the operator says so; scale [padded
/// rows]: what each row's scores are multiplied by (0 for padding rows).
void load_queries(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, float* q,
                  float* scale);
/// The scale alone, of queries that are used as they are.
void load_scales(const ForwardProblem& problem, const QueryTile& tile, float* scale);

/// The tile's queries where they lie in q one row after another as bf16, and are used as they are; otherwise
/// null.
const BF16* queries_in_place(const ForwardProblem& problem, const QueryTile& tile);

/// One row's state and its unnormalised output [d_v], which is overwritten on the way. `prefix` is the state
/// after the first indexer_topk entries, null without them.
void store_row(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, int64_t row,
               const softmax::RowState& state, const softmax::RowState* prefix, float* o);

/// The same for a partial result of fused_decode_partials.
void store_partial_row(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, int64_t row,
                       int64_t split, const softmax::RowState& state, float* o);

/// A row [512] as e4m3 codes and exponent bytes in the fused operators' layout.
struct Fp8Destination {
  uint8_t* codes;  // of the row's group of heads
  uint8_t* exponents;
  int64_t group_size;
  int64_t head;              // in its group
  int64_t sf_column_stride;  // bytes from one int32 column to the next
};
void store_fp8_row(const Isa& isa, const float* x, const Fp8Destination& to);

/// Where head `head` of a token goes in the out_fp8 and out_sf of a problem (ForwardProblem or
/// CombineProblem).
template <class Problem>
Fp8Destination fp8_destination(const Problem& problem, int64_t token, int64_t head) {
  const int64_t n_groups = problem.shape.n_groups;
  const int64_t size = problem.shape.h_q / n_groups;
  const int64_t group = head / size;
  int32_t* sf = problem.out_sf + token * problem.sf_stride_s + group * problem.sf_stride_g;
  return {problem.out_fp8 + (token * n_groups + group) * size * kFusedDim, reinterpret_cast<uint8_t*>(sf),
          size, head % size, problem.sf_stride_c * static_cast<int64_t>(sizeof(int32_t))};
}

}  // namespace tilewise::cpu
