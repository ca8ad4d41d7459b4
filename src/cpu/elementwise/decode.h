// KV rows as they lie in caches, turned into tiles.
#pragma once

#include <cstdint>

#include "core/numeric.h"
#include "cpu/targets.h"
#include "formats/record.h"

namespace tilewise::cpu {

/// A token in a cache: its page and its place there. Plain rows: the row's own address and 0.
struct RowRef {
  const uint8_t* page;
  int64_t offset;
};

struct DecodeOps {
  /// n tokens of a record as bf16 [n][ld]; the bits of formats::decode_row.
  void (*record)(const formats::RecordSpec& spec, int64_t page_size, const RowRef* rows, int64_t n, BF16* out,
                 int64_t ld);
  /// n plain rows of d elements. e4m3 values are exact in bf16, fp16 values in fp32 alone.
  void (*plain_bf16)(const RowRef* rows, int64_t n, int64_t d, BF16* out, int64_t ld);
  void (*plain_e4m3)(const RowRef* rows, int64_t n, int64_t d, BF16* out, int64_t ld);
  void (*plain_f16)(const RowRef* rows, int64_t n, int64_t d, float* out, int64_t ld);
};

const TargetTables<DecodeOps>& decode_ops();

}  // namespace tilewise::cpu
