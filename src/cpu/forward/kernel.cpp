// Forward attention on the CPU.
//
//   work      a query tile (up to 128 rows that share their keys), its keys cut into pieces (cut.h)
//   a piece   for each tile of 256 keys: source -> bf16 tile -> scores -> softmax -> accumulate (run_piece)
//   a tile    its pieces merged in order, then the epilogue, row by row
//   threads   whole query tiles where there are enough of them; otherwise single pieces, whose partial
//             results wait in the workspace for the merge. Both do the same arithmetic in the same order.
//
//   scratch of a thread, bytes at 128 rows, d 576     lifetime
//     packed_q   Q, as the products want it  294,912   a query tile; half of it in bf16
//     kv         bf16 (fp16: fp32) tile      311,296   a KV tile
//     scores     S^T; P^T of fp32            131,072   a KV tile
//     weights    P of bf16                   65,536   a KV tile
//     piece      fp32 O of a piece           294,912   a piece; holds the unpacked Q before
//     total      fp32 O of the tile          270,336   a query tile
#include "cpu/forward/kernel.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "cpu/forward/cut.h"
#include "cpu/forward/query.h"
#include "cpu/forward/source.h"
#include "cpu/isa.h"
#include "cpu/phases.h"

namespace tilewise::cpu {
namespace {

/// Partial results that wait for their merge take at most this much.
constexpr int64_t kPartialBytes = int64_t{20} << 20;
/// So does the scratch memory of all threads.
constexpr size_t kScratchBytes = size_t{40} << 20;

/// Rows that a thread merges at a time.
constexpr int64_t kMergeRows = 16;

/// Online state and output of a query tile over some of its keys.
struct Partial {
  float* o = nullptr;  // [rows][row_step(d_v)]
  float* max = nullptr;
  float* sum = nullptr;

  softmax::RowState state(int64_t row) const { return {max[row], sum[row]}; }
  void set(int64_t row, const softmax::RowState& state) const {
    max[row] = state.max;
    sum[row] = state.sum;
  }
};

int64_t partial_floats(int64_t rows, int64_t row_length) { return rows * row_length + 2 * rows; }

Partial partial_at(float* memory, int64_t rows, int64_t row_length) {
  return {memory, memory + rows * row_length, memory + rows * row_length + rows};
}

/// Rows of a query tile.
struct Rows {
  int64_t begin;
  int64_t end;
};

/// One thread's scratch memory.
struct Scratch {
  void* packed_q;
  void* kv;
  float* scores;
  void* weights;  // P; where the softmax works in place, the scores' memory
  float* scale;
  float* rescale;
  int32_t* first;
  int32_t* last;
  Partial piece;
  Partial total;
  softmax::RowState* prefix;
};

/// Books (workspace null) or grants one thread's scratch.
Scratch lay_out_scratch(const Isa& isa, const ForwardShape& shape, int64_t rows, Ledger& ledger,
                        void* workspace) {
  Scratch s{};
  Layouter layout(ledger, workspace);
  layout.bytes(s.packed_q, static_cast<int64_t>(isa.tile->packed_q_bytes(rows, shape.d_qk)));
  layout.bytes(s.kv, KeySource::tile_bytes(shape));
  layout.piece(s.scores, kTileKeys * rows);
  s.weights = s.scores;
  if (isa.softmax->p_bytes != nullptr) {
    layout.bytes(s.weights, static_cast<int64_t>(isa.softmax->p_bytes(kTileKeys, rows)));
  }
  layout.piece(s.scale, rows);
  layout.piece(s.rescale, rows);
  layout.piece(s.first, rows);
  layout.piece(s.last, rows);
  layout.piece(s.prefix, rows);
  float* floats = nullptr;
  const int64_t longer = std::max(shape.d_qk, row_step(shape.d_v));
  layout.piece(floats, partial_floats(rows, longer));
  s.piece = partial_at(floats, rows, longer);
  layout.piece(floats, partial_floats(rows, row_step(shape.d_v)));
  s.total = partial_at(floats, rows, row_step(shape.d_v));
  return s;
}

class ForwardRun {
 public:
  ForwardRun(const Isa& isa, const ForwardProblem& problem, const ForwardPlan& plan, void* workspace)
      : isa_(isa),
        problem_(problem),
        shape_(problem.shape),
        plan_(plan),
        workspace_(workspace),
        row_step_(row_step(problem.shape.d_v)),
        tiles_(query_tiles(problem.shape, plan.tile_rows)) {}

  void run() const {
    if (tiles_.count() == 0) return;
    if (shape_.epilogue == Epilogue::kPartials) {
      run_partials();
    } else if (plan_.wave_tiles == 0) {
      run_whole_tiles();
    } else {
      for (int64_t first = 0; first < tiles_.count(); first += plan_.wave_tiles) {
        run_wave(first, std::min(first + plan_.wave_tiles, tiles_.count()));
      }
    }
  }

 private:
  Scratch scratch(int thread) const {
    Ledger ledger;
    auto* memory =
        granted<std::byte>(workspace_, plan_.scratch + static_cast<size_t>(thread) * plan_.scratch_bytes);
    return lay_out_scratch(isa_, shape_, plan_.tile_rows, ledger, memory);
  }

  void run_whole_tiles() const {
#pragma omp parallel num_threads(plan_.threads)
    {
      const TileProducts products(*isa_.tile);
      const InPhase other(Phase::kOther);
      const Scratch mine = scratch(omp_get_thread_num());
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < tiles_.count(); ++i) {
        const QueryTile tile = tiles_.at(i);
        const KeyCut cut(problem_, tile);
        load_tile_queries(tile, mine);
        for (int64_t p = 0; p < cut.pieces(); ++p) {
          const Partial& to = p == 0 ? mine.total : mine.piece;
          run_piece(tile, cut, p, mine, to);
          merge_piece({0, tile.rows()}, cut, p, mine.total, to, mine.prefix);
        }
        store_rows(tile, {0, tile.rows()}, mine.total, mine.prefix);
      }
    }
  }

  /// Pieces are results of their own.
  void run_partials() const {
    const int64_t pieces = shape_.num_splits;
#pragma omp parallel num_threads(plan_.threads)
    {
      const TileProducts products(*isa_.tile);
      const InPhase other(Phase::kOther);
      const Scratch mine = scratch(omp_get_thread_num());
#pragma omp for schedule(dynamic)
      for (int64_t item = 0; item < tiles_.count() * pieces; ++item) {
        const QueryTile tile = tiles_.at(item / pieces);
        const KeyCut cut(problem_, tile);
        load_tile_queries(tile, mine);
        run_piece(tile, cut, item % pieces, mine, mine.total);
        const InPhase store(Phase::kStore);
        for (int64_t r = 0; r < tile.rows(); ++r) {
          store_partial_row(isa_, problem_, tile, r, item % pieces, mine.total.state(r),
                            mine.total.o + r * row_step_);
        }
      }
    }
  }

  /// Pieces of the query tiles [first, last) in any order, then the merges.
  void run_wave(int64_t first, int64_t last) const {
    const int64_t pieces = plan_.max_segments;
#pragma omp parallel num_threads(plan_.threads)
    {
      const TileProducts products(*isa_.tile);
      const InPhase other(Phase::kOther);
      const Scratch mine = scratch(omp_get_thread_num());
#pragma omp for schedule(dynamic)
      for (int64_t item = 0; item < (last - first) * pieces; ++item) {
        const QueryTile tile = tiles_.at(first + item / pieces);
        const KeyCut cut(problem_, tile);
        if (item % pieces >= cut.pieces()) continue;
        load_tile_queries(tile, mine);
        run_piece(tile, cut, item % pieces, mine, waiting_partial(item));
      }
      // Some rows at a time: one token alone has a single tile.
      const int64_t parts = visit::ceil_div(plan_.tile_rows, kMergeRows);
#pragma omp for schedule(dynamic)
      for (int64_t item = 0; item < (last - first) * parts; ++item) {
        const int64_t i = item / parts;
        const QueryTile tile = tiles_.at(first + i);
        const KeyCut cut(problem_, tile);
        const int64_t row = item % parts * kMergeRows;
        const Rows rows{row, std::min<int64_t>(row + kMergeRows, tile.rows())};
        const Partial total = waiting_partial(i * pieces);
        for (int64_t p = 0; p < cut.pieces(); ++p) {
          merge_piece(rows, cut, p, total, waiting_partial(i * pieces + p), mine.prefix);
        }
        store_rows(tile, rows, total, mine.prefix);
      }
    }
  }

  Partial waiting_partial(int64_t item) const {
    float* memory = granted<float>(workspace_, plan_.partials);
    return partial_at(memory + item * partial_floats(plan_.tile_rows, row_step_), plan_.tile_rows, row_step_);
  }

  void load_tile_queries(const QueryTile& tile, const Scratch& mine) const {
    if (const BF16* in_place = queries_in_place(problem_, tile)) {
      const InPhase pack(Phase::kPackQ);
      load_scales(problem_, tile, mine.scale);
      isa_.tile->pack_q_bf16(in_place, tile.rows(), shape_.d_qk, mine.packed_q);
      return;
    }
    {
      const InPhase queries(Phase::kQueries);
      load_queries(isa_, problem_, tile, mine.piece.o, mine.scale);
    }
    const InPhase pack(Phase::kPackQ);
    isa_.tile->pack_q(mine.piece.o, tile.rows(), shape_.d_qk, mine.packed_q);
  }

  void run_piece(const QueryTile& tile, const KeyCut& cut, int64_t index, const Scratch& mine,
                 const Partial& to) const {
    const int64_t m = tile.rows();
    const int64_t padded = padded_rows(m);
    std::fill_n(to.max, padded, -softmax::kInfinity);
    std::fill_n(to.sum, padded, 0.0f);
    TileStep step{.keys = 0, .m = m, .rescale = nullptr, .to = to};
    SoftmaxRows rows{mine.scale, nullptr, nullptr, to.max, to.sum, mine.rescale};
    KeySource source(isa_, problem_, tile, cut, cut.piece(index));
    LoadedTile loaded;
    while (source.next(mine.kv, &loaded)) {
      const bool limited = loaded.form == visit::Form::kRow;
      if (limited) fill_limits(tile, source, mine);
      rows.first = limited ? mine.first : nullptr;
      rows.last = limited ? mine.last : nullptr;
      step.keys = loaded.count;
      if (KeySource::needs_f32(shape_)) {
        multiply_tile<float>(step, mine, rows);
      } else {
        multiply_tile<BF16>(step, mine, rows);
      }
      step.rescale = mine.rescale;
    }
    if (step.rescale == nullptr) std::fill_n(to.o, m * row_step_, 0.0f);
  }

  /// What changes from tile to tile of a piece.
  struct TileStep {
    int64_t keys;
    int64_t m;
    const float* rescale;  // null at the first tile: O is overwritten
    Partial to;
  };

  template <class T>
  void multiply_tile(const TileStep& step, const Scratch& mine, const SoftmaxRows& rows) const {
    const ProductsOf<T> products(*isa_.tile);
    const KvTile<T> kv{static_cast<const T*>(mine.kv), key_step<T>(shape_.d_qk), step.keys};
    {
      const InPhase phase(Phase::kScores);
      products.scores(kv, shape_.d_qk, mine.packed_q, step.m, mine.scores);
    }
    {
      const InPhase phase(Phase::kSoftmax);
      isa_.softmax->tile(mine.scores, step.keys, padded_rows(step.m), rows, mine.weights);
    }
    const InPhase phase(Phase::kOutput);
    products.accumulate(mine.weights, kv, step.m, shape_.d_v, step.rescale, step.to.o, row_step_);
  }

  void fill_limits(const QueryTile& tile, const KeySource& source, const Scratch& mine) const {
    const int64_t m = tile.rows();
    for (int64_t r = 0; r < m; ++r) {
      const bool same_token = r > 0 && tile.token(r) == tile.token(r - 1);
      const visit::Range columns =
          same_token ? visit::Range{mine.first[r - 1], mine.last[r - 1]} : source.columns(tile.token(r));
      mine.first[r] = columns.begin;
      mine.last[r] = columns.end;
    }
    std::fill(mine.first + m, mine.first + padded_rows(m), 0);
    std::fill(mine.last + m, mine.last + padded_rows(m), 0);
  }

  /// Adds piece p to the pieces before it (piece 0 is where it must be already) and keeps the indexer's
  /// state.
  void merge_piece(Rows rows, const KeyCut& cut, int64_t p, const Partial& total, const Partial& part,
                   softmax::RowState* prefix) const {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      if (p > 0) {
        const softmax::Merged merged = softmax::merge(total.state(r), part.state(r));
        isa_.rows->merge(total.o + r * row_step_, merged.weight_a, part.o + r * row_step_, merged.weight_b,
                         shape_.d_v);
        total.set(r, merged.state);
      }
      if (p == 0 && cut.prefix_pieces() == 0) prefix[r] = softmax::RowState{};
      if (p + 1 == cut.prefix_pieces()) prefix[r] = total.state(r);
    }
  }

  void store_rows(const QueryTile& tile, Rows rows, const Partial& total,
                  const softmax::RowState* prefix) const {
    const InPhase phase(Phase::kStore);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      store_row(isa_, problem_, tile, r, total.state(r), shape_.indexer_topk > 0 ? prefix + r : nullptr,
                total.o + r * row_step_);
    }
  }

  const Isa& isa_;
  const ForwardProblem& problem_;
  const ForwardShape& shape_;
  const ForwardPlan& plan_;
  void* workspace_;
  int64_t row_step_;
  QueryTiles tiles_;
};

class ForwardKernel final : public Kernel<Forward> {
 public:
  explicit ForwardKernel(const Isa& isa) : isa_(isa) {}

  const std::string& name() const override { return isa_.kernel; }

  std::optional<std::string> refusal(const ForwardShape& shape, const Device& device) const override {
    if (isa_.tile->scores_f32 == nullptr && KeySource::needs_f32(shape)) {
      return "multiplies bf16, which cannot hold float16 values";
    }
    return isa_refusal(isa_, device);
  }

  ForwardPlan plan(const ForwardShape& shape, const Device& device, Ledger& ledger) const override {
    ForwardPlan plan;
    plan.tile_keys = kTileKeys;
    plan.max_segments = KeyCut::max_pieces(shape);
    choose_rows(shape, device.threads, &plan);
    plan.scratch = ledger.book<std::byte>(static_cast<int64_t>(plan.scratch_bytes) * plan.threads);
    const bool merges = shape.epilogue != Epilogue::kPartials && plan.max_segments > 1;
    if (merges && plan.threads > 1 && plan.num_tiles < int64_t{4} * plan.threads) {
      const int64_t floats = plan.max_segments * partial_floats(plan.tile_rows, row_step(shape.d_v));
      const int64_t fit = kPartialBytes / (floats * static_cast<int64_t>(sizeof(float)));
      plan.wave_tiles = std::clamp<int64_t>(fit, 1, std::max<int64_t>(plan.num_tiles, 1));
      plan.partials = ledger.book<float>(plan.wave_tiles * floats);
    }
    return plan;
  }

  void run(const ForwardProblem& problem, const ForwardPlan& plan, const RunPlace& place) const override {
    ForwardRun(isa_, problem, plan, place.workspace).run();
  }

 private:
  /// Rows of a tile, and with them the number of tiles and the scratch memory. Fewer rows a tile decode keys
  /// more often: only where threads would have nothing to do, or where their scratch memory would be too
  /// large.
  void choose_rows(const ForwardShape& shape, int threads, ForwardPlan* plan) const {
    const int64_t rows = std::max<int64_t>(query_tiles(shape, 1).rows_of_group(), 1);
    plan->tile_rows = padded_rows(visit::ceil_div(rows, visit::ceil_div(rows, kMaxTileRows)));
    while (true) {
      plan->num_tiles = query_tiles(shape, plan->tile_rows).count();
      const int64_t items = std::max<int64_t>(plan->num_tiles * plan->max_segments, 1);
      Ledger one;
      lay_out_scratch(isa_, shape, plan->tile_rows, one, nullptr);
      plan->scratch_bytes = one.bytes();
      const auto fit = static_cast<int64_t>(kScratchBytes / one.bytes());
      plan->threads = static_cast<int>(std::min({int64_t{threads}, items, fit}));
      // Tokens of a dense tile share every key, also a NaN that only one of them sees: which tokens those are
      // may depend on the shape alone.
      const bool fixed = shape.dense && shape.s_q > 1;
      if (plan->threads == threads || plan->tile_rows == kRowPad || fixed) return;
      plan->tile_rows = padded_rows(plan->tile_rows / 2);
    }
  }

  const Isa& isa_;
};

}  // namespace

KernelTable<Forward> forward_kernels() { return table_of_isas<Forward, ForwardKernel>(tile_isas()); }

}  // namespace tilewise::cpu
