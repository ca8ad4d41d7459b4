// The two arithmetics in which the oracle's formulas are evaluated. Inputs are the same in both: dequantised
// bfloat16 values, and a rotated q that was rounded to bfloat16.
#pragma once

#include "core/numeric.h"

namespace tilewise::reference {

enum class Arithmetic {
  kDouble,   ///< the oracle
  kRounded,  ///< what a good kernel can do; its distance from the oracle makes the tolerance
};

struct DoubleArithmetic {
  using Real = double;
  // What multiplies V, given exp(score - row maximum).
  static Real weight(Real p) { return p; }
};

// fp32 scores and sums, bfloat16 P; the row's sum is that of the unrounded P. Outputs are not rounded.
struct RoundedArithmetic {
  using Real = float;
  static Real weight(Real p) { return bf16_bits_to_f32(f32_to_bf16_bits(p)); }
};

}  // namespace tilewise::reference
