// The oracle of the fused operators' last step: groups of 32 channels to e4m3 codes and exponent bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.h"
#include "reference/bound.h"
#include "tilewise/tensor.h"

namespace tilewise::reference {

/// In the operators' logical order, without gaps; g = h_q / n_groups.
struct FusedCast {
  std::vector<uint8_t> codes;   ///< [s_q, n_groups, g * 512]
  std::vector<int32_t> scales;  ///< [s_q, n_groups, g * 512 / 128]
};

/// What a cast of exactly these values gives. A group's largest magnitude is taken over its elements that are
/// not NaN.
FusedCast fused_cast(const AttentionResult& result, int64_t n_groups);

/// Compares a kernel's out_fp8 and out_sf with the oracle: dequantised values within the attention's bound
/// (see kAttentionOutput) plus one code; exponent bytes equal but where the largest magnitude is within that
/// bound of a step; NaN where the oracle has it, as 0x7F; lonely rows exact. Of a row with a NaN the places
/// of NaN alone are compared.
Comparison compare_fused(const TensorView& out_fp8, const TensorView& out_sf, const AttentionResult& oracle,
                         const AttentionResult& rounded, int64_t n_groups);

}  // namespace tilewise::reference
