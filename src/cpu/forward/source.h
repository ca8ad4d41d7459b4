// KV sources of the CPU: the next keys of a piece, decoded into a tile.
#pragma once

#include <cstdint>

#include "cpu/forward/cut.h"
#include "cpu/isa.h"
#include "ops/forward.h"

namespace tilewise::cpu {

/// What a source found for a tile. Invalid keys (holes of an index list, pages out of range) take no column.
struct LoadedTile {
  int64_t count = 0;
  visit::Form form = visit::Form::kFull;
};

/// Walks the keys of one piece in tiles of at most kTileKeys columns. The index check lives here and nowhere
/// else.
class KeySource {
 public:
  KeySource(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, const KeyCut& cut,
            visit::Range piece);

  /// Decodes the next columns to `rows` [kTileKeys][key_step(d_qk)] (BF16, or float when needs_f32) and gives
  /// their number and form; false when the piece has no more. Tiles without a valid column are passed over.
  bool next(void* rows, LoadedTile* loaded);

  /// Columns of the last tile that a token sees, for tiles of Form::kRow.
  visit::Range columns(int64_t token) const;

  static bool needs_f32(const ForwardShape& shape) { return shape.main.dtype == DType::kFP16; }
  static int64_t tile_bytes(const ForwardShape& shape) {
    return kTileKeys * (needs_f32(shape) ? 4 * key_step<float>(shape.d_qk) : 2 * key_step<BF16>(shape.d_qk));
  }

 private:
  bool next_gathered(void* rows, LoadedTile* loaded);
  bool next_paged(void* rows, LoadedTile* loaded);
  void decode(const CacheShape& shape, const RowRef* refs, int64_t n, void* rows) const;

  const Isa& isa_;
  const ForwardProblem& problem_;
  const QueryTile& tile_;
  const KeyCut& cut_;
  visit::Range piece_;
  int64_t place_;  // sparse: next list entry; dense: next step of visit_

  visit::MaskRule rule_;
  visit::Range needed_;  // dense: keys that some row sees
  visit::IntervalVisit visit_;

  int64_t count_ = 0;
  RowRef refs_[kTileKeys];
  int32_t positions_[kTileKeys];
};

}  // namespace tilewise::cpu
