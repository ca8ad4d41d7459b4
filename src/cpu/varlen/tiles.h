// Rows of q, k, v and their gradients on their way into tiles and back.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstring>

#include "cpu/isa.h"
#include "cpu/varlen/sequences.h"
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

/// Which keys of a tile some query sees: only those are read.
class NeededKeys {
 public:
  /// `keys` is the tile's range, counted in its sequence.
  explicit NeededKeys(visit::Range keys) : keys_(keys) {}

  void add(visit::Range seen) {
    const int32_t begin = std::max(seen.begin, keys_.begin) - keys_.begin;
    const int32_t end = std::min(seen.end, keys_.end) - keys_.begin;
    if (begin >= end) return;
    needed_ |= (~Keys() >> (kMaxTileKeys - static_cast<size_t>(end - begin))) << static_cast<size_t>(begin);
    count_ = std::max(count_, end);
  }

  bool has(int32_t key) const { return needed_[static_cast<size_t>(key)]; }
  /// Keys up to the last one needed.
  int32_t count() const { return count_; }
  /// The tile's range up to there.
  visit::Range range() const { return {keys_.begin, keys_.begin + count_}; }

 private:
  using Keys = std::bitset<kMaxTileKeys>;

  visit::Range keys_;
  Keys needed_;
  int32_t count_ = 0;
};

/// The needed keys of a tile whose first row in `from` is `first`, [needed.count()][d]; the others there are
/// zero: a NaN among them must not meet a weight of 0.
template <class T>
void load_keys(const Isa& isa, const RowTensor<const uint16_t>& from, int64_t first, int64_t head, int64_t d,
               const NeededKeys& needed, T* to) {
  for (int32_t i = 0; i < needed.count(); ++i) {
    if (needed.has(i)) {
      load_row(isa, from.at(0, first + i, head), d, to + i * d);
    } else {
      std::fill_n(to + i * d, d, T{});
    }
  }
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

/// Tiles, threads with scratch_bytes of memory each, and room for the sequences. `pieces`: of work, at most.
inline VarlenPlan plan_tiles(const VarlenShape& shape, const VarlenTiles& tiles, const Device& device,
                             size_t scratch_bytes, int64_t pieces, Ledger& ledger) {
  // The scratch memory of all threads takes at most this much.
  constexpr size_t kScratchBytes = size_t{60} << 20;
  VarlenPlan plan;
  plan.tile_rows = tiles.rows;
  plan.tile_keys = tiles.keys;
  plan.scratch_bytes = scratch_bytes;
  const auto fit = static_cast<int>(std::max<size_t>(kScratchBytes / scratch_bytes, 1));
  plan.threads = useful_threads(std::min(device.threads, fit), pieces);
  plan.sequences = ledger.book<Sequence>(shape.batch);
  plan.scratch = ledger.book<std::byte>(static_cast<int64_t>(scratch_bytes) * plan.threads);
  return plan;
}

}  // namespace tilewise::cpu
