// A selection as the backward needs it: the blocks of every query block, sorted, and the reverse.
#pragma once

#include <cstdint>

#include "core/ledger.h"
#include "cpu/varlen/sequences.h"
#include "ops/varlen.h"
#include "visit/list.h"

namespace tilewise::cpu {

/// Where a wave's selection lies in the workspace. Lists are those of a head, or the one that all heads
/// share.
struct SelectionMemory {
  int64_t width = 0;
  int64_t rows = 0;             // of a list
  int64_t key_blocks = 0;       // room for those of a wave, and an end for each sequence
  int32_t* blocks = nullptr;    // [lists][rows][width]: ascending, distinct
  int32_t* counts = nullptr;    // [lists][rows]
  int64_t* row_ptr = nullptr;   // [lists][key_blocks]: a sequence's entries, counted from its first
  int32_t* q_blocks = nullptr;  // [lists][rows * width]: a sequence's begin at its first row's
  int32_t* ranks = nullptr;     // likewise

  static int64_t list(const VarlenShape& shape, int64_t head) { return shape.selection_per_head ? head : 0; }

  /// A sequence's row_ptr: one more than it has key blocks.
  int64_t* pointers(const VarlenShape& shape, const Sequence& sequence, int64_t head) const {
    return row_ptr + list(shape, head) * key_blocks + sequence.first_key_tile + sequence.index;
  }
  int64_t first_entry(const VarlenShape& shape, const Sequence& sequence, int64_t head) const {
    return (list(shape, head) * rows + sequence.selection_row) * width;
  }

  /// Calls `take(query block, rank of the key block among those that it selected)`, ascending.
  template <class Take>
  void for_each_selecting(const VarlenShape& shape, const Sequence& sequence, int64_t key_block, int64_t head,
                          const Take& take) const {
    const int64_t* pointer = pointers(shape, sequence, head) + key_block;
    const int64_t first = first_entry(shape, sequence, head);
    for (int64_t i = pointer[0]; i < pointer[1]; ++i) take(int64_t{q_blocks[first + i]}, ranks[first + i]);
  }

  visit::ListVisit visit(const VarlenShape& shape, const Sequence& sequence, visit::Range queries,
                         int64_t head, const visit::IntervalVisit& interval) const {
    const int64_t row = queries.begin / shape.q_block;
    const int64_t at = list(shape, head) * rows + sequence.selection_row + row;
    const bool exists = row < sequence.selection_rows;
    return visit::make_list(exists ? blocks + at * width : nullptr, exists ? counts[at] : 0,
                            static_cast<int32_t>(shape.kv_block), interval);
  }
};

/// Books (workspace null) or grants it.
SelectionMemory lay_out_selection(const VarlenShape& shape, Ledger& ledger, void* workspace);
/// Fills it for a wave whose key tiles are whole blocks.
void build_selection(const VarlenBackwardProblem& problem, const Wave& wave, int threads,
                     const SelectionMemory& memory);

}  // namespace tilewise::cpu
