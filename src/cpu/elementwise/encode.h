// KV rows into cache records.
#pragma once

#include <cstdint>

#include "core/numeric.h"
#include "cpu/targets.h"
#include "formats/record.h"

namespace tilewise::cpu {

struct EncodeOps {
  /// One token x [spec.d] into its place of a page; the bytes of formats::encode_row.
  void (*record)(const formats::RecordSpec& spec, const BF16* x, uint8_t* page, int64_t page_size,
                 int64_t offset);
};

const TargetTables<EncodeOps>& encode_ops();

}  // namespace tilewise::cpu
