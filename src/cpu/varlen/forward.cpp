// dense_prefill_fwd and block_sparse_prefill_fwd on the CPU.
//
//   work      query tiles that share a KV head, up to 1,024 rows; a tile has 64 rows of a head, 128 where a
//             selection's query blocks allow
//   loop      over the key tiles that any of them visits, in ascending order: K and V are brought into the
//             thread's memory once, then each query tile that visits them: scores -> softmax -> accumulate
//   threads   take such work from the end of each sequence on, where it is longest. A row's bits depend on
//             its own visit alone.
//
//   scratch of a thread, bytes at 192/128           lifetime
//     kv         bf16 (fp16: fp32) K and V  163,840   a key tile
//     packed_v   V, as bf16 units read it    65,536   a key tile
//     scores     S^T; P^T of fp32            65,536   a query tile's key tile; the unpacked Q before
//     weights    P of bf16                   32,768   likewise
//     16 x       packed Q                    49,152   a query tile; half of it in bf16
//                fp32 O                      36,864   a query tile
//                state, block list
#include <omp.h>

#include <algorithm>
#include <array>

#include "core/float_value.h"
#include "cpu/phases.h"
#include "cpu/varlen/kernels.h"
#include "cpu/varlen/sequences.h"
#include "cpu/varlen/tiles.h"
#include "softmax/state.h"

namespace tilewise::cpu {
namespace {

constexpr int64_t kRowsTogether = 1024;
constexpr int64_t kMostTogether = kRowsTogether / 64;
int64_t tiles_together(const VarlenTiles& tiles) { return kRowsTogether / tiles.rows; }
/// Fewer tiles share their keys where there would not be so many pieces of work.
constexpr int64_t kPieces = 32;

/// A query tile's part of the scratch memory.
struct TileMemory {
  void* packed_q;
  float* o;
  float* max;
  float* sum;
  int32_t* blocks;
};

struct Scratch {
  void* k;
  void* v;
  void* packed_v;
  float* scores;
  void* weights;
  float* scale;
  float* rescale;
  int32_t* first;
  int32_t* last;
  std::array<TileMemory, kMostTogether> tiles;  // the first tiles_together() of them
};

/// Books (workspace null) or grants one thread's scratch.
Scratch lay_out(const Isa& isa, const VarlenShape& shape, Ledger& ledger, void* workspace) {
  const VarlenTiles tiles = forward_tiles(shape);
  Scratch s{};
  Layouter layout(ledger, workspace);
  const int64_t element = shape.dtype == DType::kFP16 ? 4 : 2;
  layout.bytes(s.k, tiles.keys * shape.d_qk * element);
  layout.bytes(s.v, tiles.keys * shape.d_v * element);
  lay_out_packed_v(*isa.tile, shape.d_v, layout, s.packed_v);
  layout.piece(s.scores, std::max(tiles.keys, shape.d_qk) * tiles.rows);
  s.weights = s.scores;
  if (isa.softmax->p_bytes != nullptr) {
    layout.bytes(s.weights, static_cast<int64_t>(isa.softmax->p_bytes(tiles.keys, tiles.rows)));
  }
  layout.piece(s.scale, tiles.rows);
  layout.piece(s.rescale, tiles.rows);
  layout.piece(s.first, tiles.rows);
  layout.piece(s.last, tiles.rows);
  for (TileMemory& tile : std::span(s.tiles).first(static_cast<size_t>(tiles_together(tiles)))) {
    layout.bytes(tile.packed_q, static_cast<int64_t>(isa.tile->packed_q_bytes(tiles.rows, shape.d_qk)));
    layout.piece(tile.o, tiles.rows * row_step(shape.d_v));
    layout.piece(tile.max, tiles.rows);
    layout.piece(tile.sum, tiles.rows);
    layout.piece(tile.blocks, shape.selection_width);
  }
  return s;
}

/// A query tile at work.
template <class Visit>
struct RunningTile {
  int64_t head = 0;
  visit::Range queries;
  Visit visit;
  int32_t place = 0;
  TileMemory memory{};

  bool done() const { return place >= visit.count(); }
  int32_t next_tile() const { return visit.at(place).tile; }
};

template <class T, class Visit>
class ForwardRun {
 public:
  ForwardRun(const Isa& isa, const VarlenForwardProblem& problem, const VarlenPlan& plan, void* workspace)
      : isa_(isa),
        problem_(problem),
        shape_(problem.shape),
        plan_(plan),
        tiles_{plan.tile_rows, plan.tile_keys},
        group_(shape_.h_q / shape_.h_kv),
        workspace_(workspace) {}

  void run() const {
    for_each_wave(problem_, tiles_.rows, tiles_.keys, granted<Sequence>(workspace_, plan_.sequences),
                  [this](const Wave& wave) { run_wave(wave); });
  }

 private:
  using Tile = RunningTile<Visit>;

  /// A tile's keys up to the last one needed.
  struct LoadedKeys {
    visit::Range range;
    KvTile<T> k;
    KvTile<T> v;
  };

  /// The query tiles of a wave, each with all heads of its group one after the other; no work goes from one
  /// sequence to the next.
  void run_wave(const Wave& wave) const {
    const int64_t pieces = wave.query_tiles * shape_.h_kv;
#pragma omp parallel num_threads(plan_.threads)
    {
      const TileProducts products(*isa_.tile);
      const InPhase other(Phase::kOther);
      Ledger ledger;
      const Scratch mine = lay_out(isa_, shape_, ledger,
                                   granted<std::byte>(workspace_, plan_.scratch) +
                                       static_cast<size_t>(omp_get_thread_num()) * plan_.scratch_bytes);
      std::fill_n(mine.scale, tiles_.rows, shape_.softmax_scale);
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < pieces; ++i) {
        const int64_t piece = pieces - 1 - i;
        run_piece(wave, piece / shape_.h_kv, piece % shape_.h_kv, mine);
      }
    }
  }

  /// All heads of a group, for the query tiles that begin with this one where it is the first of a piece.
  void run_piece(const Wave& wave, int64_t wave_tile, int64_t kv_head, const Scratch& mine) const {
    const Sequence& sequence = wave.of_query_tile(wave_tile);
    const int64_t tile = wave_tile - sequence.first_query_tile;
    const auto together = static_cast<size_t>(tiles_together(tiles_));
    const int64_t most = std::max<int64_t>(tiles_together(tiles_) / group_, 1);
    const int64_t at_once = std::clamp<int64_t>(wave.query_tiles * shape_.h_kv / kPieces, 1, most);
    if (tile % at_once != 0) return;
    const int64_t end = std::min(tile + at_once, sequence.query_tiles(tiles_.rows));
    std::array<Tile, kMostTogether> running;
    size_t count = 0;
    for (int64_t t = tile; t < end; ++t) {
      for (int64_t j = 0; j < group_; ++j) {
        running[count] = begin_tile(sequence, t, kv_head * group_ + j, mine, mine.tiles[count]);
        if (++count < together) continue;
        run_tiles(sequence, kv_head, {running.data(), count}, mine);
        count = 0;
      }
    }
    if (count > 0) run_tiles(sequence, kv_head, {running.data(), count}, mine);
  }

  Tile begin_tile(const Sequence& sequence, int64_t index, int64_t head, const Scratch& mine,
                  const TileMemory& memory) const {
    Tile tile;
    tile.head = head;
    tile.queries = sequence.queries(index, tiles_.rows);
    tile.memory = memory;
    const visit::IntervalVisit interval = key_interval(sequence, tiles_, tile.queries);
    if constexpr (std::is_same_v<Visit, visit::ListVisit>) {
      const int32_t blocks = select_key_blocks(problem_, sequence, tile.queries, head, memory.blocks);
      tile.visit = visit::make_list(memory.blocks, blocks, static_cast<int32_t>(shape_.kv_block), interval);
    } else {
      tile.visit = interval;
    }
    const int64_t m = tile.queries.size();
    std::fill_n(memory.max, padded_rows(m), -softmax::kInfinity);
    std::fill_n(memory.sum, padded_rows(m), 0.0f);
    if (tile.done()) {
      std::fill_n(memory.o, m * row_step(shape_.d_v), 0.0f);
      return tile;
    }
    const InPhase pack(Phase::kPackQ);
    auto* rows = reinterpret_cast<T*>(mine.scores);
    for (int64_t r = 0; r < m; ++r) {
      load_row(isa_, problem_.q.at(0, sequence.q_begin + tile.queries.begin + r, head), shape_.d_qk,
               rows + r * shape_.d_qk);
    }
    ProductsOf<T>(*isa_.tile).pack_q(rows, m, shape_.d_qk, memory.packed_q);
    return tile;
  }

  void run_tiles(const Sequence& sequence, int64_t kv_head, std::span<Tile> tiles,
                 const Scratch& mine) const {
    while (true) {
      int32_t next = INT32_MAX;
      for (const Tile& tile : tiles) {
        if (!tile.done()) next = std::min(next, tile.next_tile());
      }
      if (next == INT32_MAX) break;
      const LoadedKeys loaded = load(sequence, kv_head, next, tiles, mine);
      for (Tile& tile : tiles) {
        if (!tile.done() && tile.next_tile() == next) visit_tile(sequence, loaded, mine, tile);
      }
    }
    const InPhase store(Phase::kStore);
    for (const Tile& tile : tiles) store_tile(sequence, tile);
  }

  /// Brings the keys of tile number `index` that the tiles at it need.
  LoadedKeys load(const Sequence& sequence, int64_t kv_head, int32_t index, std::span<const Tile> tiles,
                  const Scratch& mine) const {
    const InPhase phase(Phase::kDecode);
    const auto keys = visit::tile_range(index, static_cast<int32_t>(tiles_.keys), sequence.rule.len_k);
    NeededKeys needed(keys);
    for (const Tile& tile : tiles) {
      if (tile.done() || tile.next_tile() != index) continue;
      needed.add(visit::keys_seen_by_any(sequence.rule, tile.queries));
    }
    const int64_t first = sequence.k_begin + keys.begin;
    load_keys(isa_, problem_.k, first, kv_head, shape_.d_qk, needed, static_cast<T*>(mine.k));
    load_keys(isa_, problem_.v, first, kv_head, shape_.d_v, needed, static_cast<T*>(mine.v));
    const visit::Range range = needed.range();
    const InPhase pack(Phase::kPackV);
    const KvTile<T> v{static_cast<const T*>(mine.v), shape_.d_v, range.size()};
    return {range,
            {static_cast<const T*>(mine.k), shape_.d_qk, range.size()},
            with_packed_v(ProductsOf<T>(*isa_.tile), v, shape_.d_v, mine.packed_v)};
  }

  void visit_tile(const Sequence& sequence, const LoadedKeys& loaded, const Scratch& mine, Tile& tile) const {
    // Keys that none of the rows sees are left out at both ends.
    const visit::Range seen = visit::keys_seen_by_any(sequence.rule, tile.queries);
    const int32_t skip = std::max(seen.begin - loaded.range.begin, 0) / kPackedKeys * kPackedKeys;
    const visit::Range keys{loaded.range.begin + skip, std::min(seen.end, loaded.range.end)};
    const KvTile<T> k = part_of(loaded.k, skip, keys.size());
    const KvTile<T> v = part_of(loaded.v, skip, keys.size());
    const int64_t m = tile.queries.size();
    const TileMemory& memory = tile.memory;
    SoftmaxRows rows{mine.scale, nullptr, nullptr, memory.max, memory.sum, mine.rescale};
    if (tile.visit.at(tile.place).form == visit::Form::kRow) {
      fill_limits(sequence.rule, tile.queries, keys, mine.first, mine.last);
      rows.first = mine.first;
      rows.last = mine.last;
    }
    const ProductsOf<T> products(*isa_.tile);
    {
      const InPhase phase(Phase::kScores);
      products.scores(k, shape_.d_qk, memory.packed_q, m, mine.scores);
    }
    {
      const InPhase phase(Phase::kSoftmax);
      isa_.softmax->tile(mine.scores, keys.size(), padded_rows(m), rows, mine.weights);
    }
    const InPhase phase(Phase::kOutput);
    const float* rescale = tile.place == 0 ? nullptr : mine.rescale;
    products.accumulate(mine.weights, v, m, shape_.d_v, rescale, memory.o, row_step(shape_.d_v));
    ++tile.place;
  }

  void store_tile(const Sequence& sequence, const Tile& tile) const {
    const TileMemory& memory = tile.memory;
    for (int64_t r = 0; r < tile.queries.size(); ++r) {
      const int64_t token = sequence.q_begin + tile.queries.begin + r;
      const softmax::RowState state{memory.max[r], memory.sum[r]};
      softmax::RowResult result = softmax::finish(state);
      if (shape_.has_sink_bias) {
        const float sink =
            float_value(problem_.sink_bias, shape_.sink_bias_dtype, tile.head * problem_.sink_bias_stride);
        result = softmax::finish_with_sink_bias(state, sink);
      }
      float* o = memory.o + r * row_step(shape_.d_v);
      // A row without weight is +0 whatever its accumulators met.
      if (result.scale == 0.0f) {
        std::fill_n(o, shape_.d_v, 0.0f);
      } else {
        isa_.rows->multiply(o, shape_.d_v, result.scale);
      }
      isa_.rows->narrow(o, shape_.d_v, shape_.dtype, problem_.out.at(0, token, tile.head));
      if (problem_.lse.data != nullptr) *problem_.lse.at(0, token, tile.head) = result.lse;
    }
  }

  const Isa& isa_;
  const VarlenForwardProblem& problem_;
  const VarlenShape& shape_;
  const VarlenPlan& plan_;
  VarlenTiles tiles_;
  int64_t group_;
  void* workspace_;
};

class ForwardKernel final : public Kernel<VarlenForward> {
 public:
  explicit ForwardKernel(const Isa& isa) : isa_(isa) {}

  const std::string& name() const override { return isa_.kernel; }
  std::optional<std::string> refusal(const VarlenShape& shape, const Device& device) const override {
    return varlen_refusal(isa_, shape, device);
  }

  VarlenPlan plan(const VarlenShape& shape, const Device& device, Ledger& ledger) const override {
    Ledger one;
    lay_out(isa_, shape, one, nullptr);
    const VarlenTiles tiles = forward_tiles(shape);
    const int64_t pieces = max_wave_tiles(shape.total_q, shape.batch, tiles.rows) * shape.h_kv;
    return plan_tiles(shape, tiles, device, one.bytes(), pieces, ledger);
  }

  void run(const VarlenForwardProblem& problem, const VarlenPlan& plan,
           const RunPlace& place) const override {
    if (problem.shape.dtype == DType::kFP16) {
      run_as<float>(problem, plan, place.workspace);
    } else {
      run_as<BF16>(problem, plan, place.workspace);
    }
  }

 private:
  template <class T>
  void run_as(const VarlenForwardProblem& problem, const VarlenPlan& plan, void* workspace) const {
    if (problem.shape.selected) {
      ForwardRun<T, visit::ListVisit>(isa_, problem, plan, workspace).run();
    } else {
      ForwardRun<T, visit::IntervalVisit>(isa_, problem, plan, workspace).run();
    }
  }

  const Isa& isa_;
};

}  // namespace

KernelTable<VarlenForward> varlen_forward_kernels() {
  return table_of_isas<VarlenForward, ForwardKernel>(tile_isas());
}

}  // namespace tilewise::cpu
