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
  /// s [keys][rows]: scores in. p: P = exp(score * scale - max) out, in the form that the tile products of
  /// the same instruction set read. `rows` is a multiple of kRowPad.
  void (*tile)(float* s, int64_t keys, int64_t rows, const SoftmaxRows& state, void* p);
  /// Bytes of p; null: p must be s, whose place P takes.
  size_t (*p_bytes)(int64_t keys, int64_t rows);
};

const TargetTables<SoftmaxOps>& softmax_ops();

}  // namespace tilewise::cpu
