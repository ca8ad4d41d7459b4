// The sequences of a call: where their rows lie, what their queries see, and which of them may run beside
// each other.
#pragma once

#include <cstdint>

#include "ops/varlen.h"
#include "visit/interval.h"
#include "visit/list.h"
#include "visit/rules.h"

namespace tilewise::cpu {

struct Sequence {
  int64_t index = 0;    // in its wave
  int64_t q_begin = 0;  // its first row in q
  int64_t k_begin = 0;
  visit::MaskRule rule;          // with its lengths
  int64_t selection_row = 0;     // its first row in the selection
  int64_t selection_rows = 0;    // those that exist
  int64_t first_query_tile = 0;  // among those of its wave
  int64_t first_key_tile = 0;    // likewise

  int64_t query_tiles(int64_t tile_rows) const { return visit::ceil_div(rule.len_q, tile_rows); }
  int64_t key_tiles(int64_t tile_keys) const { return visit::ceil_div(rule.len_k, tile_keys); }
  visit::Range queries(int64_t tile, int64_t tile_rows) const {
    return visit::tile_range(static_cast<int32_t>(tile), static_cast<int32_t>(tile_rows), rule.len_q);
  }
};

/// Consecutive sequences that share no row, and their tiles laid end to end.
struct Wave {
  const Sequence* sequences = nullptr;
  int64_t count = 0;
  int64_t query_tiles = 0;
  int64_t key_tiles = 0;

  const Sequence& of_query_tile(int64_t tile) const {
    return last_where([tile](const Sequence& s) { return s.first_query_tile <= tile; });
  }
  const Sequence& of_key_tile(int64_t tile) const {
    return last_where([tile](const Sequence& s) { return s.first_key_tile <= tile; });
  }

 private:
  template <class Holds>
  const Sequence& last_where(const Holds& holds) const {
    const int32_t end =
        visit::first_where(0, static_cast<int32_t>(count), [&](int32_t i) { return !holds(sequences[i]); });
    return sequences[end - 1];
  }
};

/// Most query or key tiles of a wave, for `batch` sequences of `rows` rows together.
inline int64_t max_wave_tiles(int64_t rows, int64_t batch, int64_t tile) {
  return visit::smaller(rows, rows / tile + batch);
}

/// Calls `run(wave)` for all sequences, in waves. memory [batch]. Where cu_seqlens decrease, two sequences
/// may claim a row: they run one after the other, and the later one's result stays.
template <class Problem, class Run>
void for_each_wave(const Problem& problem, int64_t tile_rows, int64_t tile_keys, Sequence* memory,
                   const Run& run) {
  const VarlenShape& shape = problem.shape;
  const auto clamped = [](int64_t value, int64_t limit) {
    return visit::smaller(visit::larger(value, 0), limit);
  };
  int64_t selection_row = 0;
  int64_t q_end = 0;  // of the wave so far
  int64_t k_end = 0;
  Wave wave{memory};
  for (int64_t i = 0; i < shape.batch; ++i) {
    const int64_t q_first = clamped(problem.cu_q[i * problem.cu_q_stride], shape.total_q);
    const int64_t q_last = clamped(problem.cu_q[(i + 1) * problem.cu_q_stride], shape.total_q);
    const int64_t k_first = clamped(problem.cu_k[i * problem.cu_k_stride], shape.total_k);
    const int64_t k_last = clamped(problem.cu_k[(i + 1) * problem.cu_k_stride], shape.total_k);
    const int64_t len_q = clamped(q_last - q_first, shape.max_seqlen_q);
    const int64_t len_k = clamped(k_last - k_first, shape.max_seqlen_k);
    if ((len_q > 0 && q_first < q_end) || (len_k > 0 && k_first < k_end)) {
      run(wave);
      wave = {memory + i};
      q_end = 0;
      k_end = 0;
    }
    Sequence& s = memory[i];
    s = {};
    s.index = wave.count;
    s.q_begin = q_first;
    s.k_begin = k_first;
    s.rule = visit::make_mask_rule(static_cast<int32_t>(len_q), static_cast<int32_t>(len_k), shape.causal,
                                   shape.window.left, shape.window.right);
    s.first_query_tile = wave.query_tiles;
    s.first_key_tile = wave.key_tiles;
    if (shape.selected) {
      const int64_t wanted = visit::ceil_div(len_q, shape.q_block);
      s.selection_row = selection_row;
      s.selection_rows = clamped(shape.selection_rows - selection_row, wanted);
      selection_row += wanted;
    }
    ++wave.count;
    wave.query_tiles += s.query_tiles(tile_rows);
    wave.key_tiles += s.key_tiles(tile_keys);
    if (len_q > 0) q_end = visit::larger(q_end, q_first + len_q);
    if (len_k > 0) k_end = visit::larger(k_end, k_first + len_k);
  }
  if (wave.count > 0) run(wave);
}

/// Query and key tiles for a shape. A tile of keys divides a selection's blocks, and a tile of queries too.
struct VarlenTiles {
  int64_t rows;
  int64_t keys;
};
inline VarlenTiles forward_tiles(const VarlenShape& shape) {
  if (!shape.selected) return {64, 256};
  return {shape.q_block % 128 == 0 ? 128 : 64, shape.kv_block};
}
inline VarlenTiles backward_tiles(const VarlenShape& shape) {
  return shape.selected ? forward_tiles(shape) : VarlenTiles{128, 256};
}

/// The key tiles that a tile of queries visits where nothing is selected.
inline visit::IntervalVisit key_interval(const Sequence& sequence, const VarlenTiles& tiles,
                                         visit::Range queries) {
  return visit::visit_keys(sequence.rule, queries, static_cast<int32_t>(tiles.keys),
                           visit::TileOrigin::kSequence);
}

/// The selected key blocks that some of these queries, all of one query block, see: ascending, distinct.
/// blocks [selection_width]. Returns their number.
template <class Problem>
int32_t select_key_blocks(const Problem& problem, const Sequence& sequence, visit::Range queries,
                          int64_t head, int32_t* blocks) {
  const VarlenShape& shape = problem.shape;
  const int64_t row = queries.begin / shape.q_block;
  if (row >= sequence.selection_rows) return 0;
  const int32_t* ids =
      problem.q2k + head * problem.q2k_stride_h + (sequence.selection_row + row) * problem.q2k_stride_row;
  const visit::Range seen = visit::keys_seen_by_any(sequence.rule, queries);
  return visit::select_blocks(ids, static_cast<int32_t>(shape.selection_width),
                              visit::blocks_of(seen, static_cast<int32_t>(shape.kv_block)), blocks);
}

}  // namespace tilewise::cpu
