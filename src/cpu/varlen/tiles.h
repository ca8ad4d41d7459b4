// Rows of q, k, v and their gradients on their way into tiles and back.
#pragma once

#include <algorithm>
#include <cstring>

#include "cpu/isa.h"
#include "ops/varlen.h"
#include "visit/rules.h"

namespace tilewise::cpu {

/// What tiles hold of a call's elements: BF16, or float for float16, which bf16 cannot hold.
template <class T>
constexpr bool kHoldsF16 = std::is_same_v<T, float>;

/// Why an instruction set's tiles cannot hold a problem; nothing when they can.
inline std::optional<std::string> varlen_refusal(const Isa& isa, const VarlenShape& shape,
                                                 const Device& device) {
  if (isa.tile->scores_f32 == nullptr && shape.dtype == DType::kFP16) {
    return "multiplies bf16, which cannot hold float16 values";
  }
  return isa_refusal(isa, device);
}

/// A row of a tensor as a tile's row.
template <class T>
void load_row(const Isa& isa, const uint16_t* from, int64_t d, T* to) {
  if constexpr (kHoldsF16<T>) {
    isa.rows->widen(from, DType::kFP16, d, to);
  } else {
    std::memcpy(to, from, static_cast<size_t>(d) * sizeof(uint16_t));
  }
}

/// The rows [needed.begin, needed.end) of `count` rows from `first` on, [count][d]; the other rows before
/// them are zero.
template <class T>
void load_keys(const Isa& isa, const RowTensor<const uint16_t>& from, int64_t first, int64_t head, int64_t d,
               visit::Range needed, T* to) {
  std::fill_n(to, needed.begin * d, T{});
  for (int64_t i = needed.begin; i < needed.end; ++i) {
    load_row(isa, from.at(0, first + i, head), d, to + i * d);
  }
}

/// The rows of a query tile packed for the scores; `buffer` holds m * d floats.
inline void pack_rows(const Isa& isa, const RowTensor<const uint16_t>& from, DType dtype, int64_t first,
                      int64_t m, int64_t head, int64_t d, float* buffer, void* packed) {
  for (int64_t r = 0; r < m; ++r) isa.rows->widen(from.at(0, first + r, head), dtype, d, buffer + r * d);
  isa.tile->pack_q(buffer, m, d, packed);
}

/// The columns that each row of a query tile sees of the keys of a tile, [padded_rows(queries.size())].
inline void fill_limits(const visit::MaskRule& rule, visit::Range queries, visit::Range keys, int32_t* first,
                        int32_t* last) {
  const int32_t m = queries.size();
  for (int32_t r = 0; r < m; ++r) {
    const visit::Range columns = visit::visible_columns(rule, queries.begin + r, keys);
    first[r] = columns.begin;
    last[r] = columns.end;
  }
  std::fill(first + m, first + padded_rows(m), 0);
  std::fill(last + m, last + padded_rows(m), 0);
}

}  // namespace tilewise::cpu
