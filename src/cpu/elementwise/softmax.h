// The online softmax over one tile of scores, rows side by side.
#pragma once

#include <cstdint>

#include "cpu/targets.h"

namespace tilewise::cpu {

/// State of the rows of a query tile; every array has padded_rows(m) elements and is 64-byte aligned.
struct SoftmaxRows {
  const float* scale;    // scores are multiplied by it
  const int32_t* first;  // the row's columns are [first, last); both null: all columns of the tile
  const int32_t* last;
  float* max;      // in and out: softmax::RowState
  float* sum;      // in and out
  float* rescale;  // out: factor for the row's output so far
};

struct SoftmaxOps {
  /// s [keys][rows]: scores in, P = exp(score * scale - max) out. `rows` is a multiple of kRowPad.
  void (*tile)(float* s, int64_t keys, int64_t rows, const SoftmaxRows& state);
};

const TargetTables<SoftmaxOps>& softmax_ops();

}  // namespace tilewise::cpu
