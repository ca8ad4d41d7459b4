#include "cpu/varlen/selection.h"

namespace tilewise::cpu {

SelectionMemory lay_out_selection(const VarlenShape& shape, Ledger& ledger, void* workspace) {
  SelectionMemory m;
  m.width = shape.selection_width;
  m.rows = shape.selection_rows;
  m.key_blocks = max_wave_tiles(shape.total_k, shape.batch, shape.kv_block) + shape.batch;
  const int64_t lists = shape.selection_per_head ? shape.h_q : 1;
  Layouter layout(ledger, workspace);
  layout.piece(m.blocks, lists * m.rows * m.width);
  layout.piece(m.counts, lists * m.rows);
  layout.piece(m.row_ptr, lists * m.key_blocks);
  layout.piece(m.q_blocks, lists * m.rows * m.width);
  layout.piece(m.ranks, lists * m.rows * m.width);
  return m;
}

void build_selection(const VarlenBackwardProblem& problem, const Wave& wave, int threads,
                     const SelectionMemory& memory) {
  const VarlenShape& shape = problem.shape;
  const int64_t lists = shape.selection_per_head ? shape.h_q : 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t i = 0; i < wave.count * lists; ++i) {
    const Sequence& sequence = wave.sequences[i / lists];
    const int64_t head = i % lists;
    int32_t* blocks = memory.blocks + memory.first_entry(shape, sequence, head);
    int32_t* counts = memory.counts + head * memory.rows + sequence.selection_row;
    for (int64_t row = 0; row < sequence.selection_rows; ++row) {
      const visit::Range queries = sequence.queries(row, shape.q_block);
      counts[row] = select_key_blocks(problem, sequence, queries, head, blocks + row * memory.width);
    }
    const int64_t first = memory.first_entry(shape, sequence, head);
    visit::invert_selection(blocks, counts, static_cast<int32_t>(sequence.selection_rows), memory.width,
                            static_cast<int32_t>(sequence.key_tiles(shape.kv_block)),
                            memory.pointers(shape, sequence, head), memory.q_blocks + first,
                            memory.ranks + first);
  }
}

}  // namespace tilewise::cpu
