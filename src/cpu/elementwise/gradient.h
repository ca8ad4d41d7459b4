// From scores and the gradient of the weights to the gradient of the scores, over one tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/targets.h"

namespace tilewise::cpu {

/// The rows of a query tile; every array has padded_rows(m) elements and is 64-byte aligned. Padding rows
/// have an lse of +inf, and with it weights of 0.
struct GradientRows {
  const float* lse;
  const float* delta;    // sum over columns of dO * O
  const int32_t* first;  // the row's columns are [first, last); both null: all columns of the tile
  const int32_t* last;
  float* values;  // null, or where each row's sum of P * dP over the keys goes
};

/// What a tile's weights P and their scores' gradient dS become, each in the form that the tile products of
/// the same instruction set read.
struct GradientWeights {
  void* p_keys;   // P for accumulate_keys
  void* ds_keys;  // dS for accumulate_keys
  void* ds_rows;  // dS for accumulate
};

struct GradientOps {
  /// s, dp [keys][rows]: scores and dO V^T in; P = exp(s * scale - lse) and dS = P * (dp - delta) * scale
  /// out. `rows` is a multiple of kRowPad. key_sums (null, or [keys]): P summed over the rows is added to it.
  void (*tile)(float* s, float* dp, int64_t keys, int64_t rows, float scale, const GradientRows& state,
               const GradientWeights& to, float* key_sums);
  /// Bytes of p_keys and ds_keys, and of ds_rows. Both null: p_keys must be s, ds_keys and ds_rows must be
  /// dp, whose places they take.
  size_t (*keys_bytes)(int64_t keys, int64_t rows);
  size_t (*rows_bytes)(int64_t keys, int64_t rows);
};

const TargetTables<GradientOps>& gradient_ops();

}  // namespace tilewise::cpu
