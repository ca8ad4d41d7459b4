// dense_prefill_bwd and block_sparse_prefill_bwd on the CPU.
//
//   before    delta = sum(dO * O) of every row; with a selection, its blocks sorted and the reverse: which
//             query blocks selected each key block
//   work      a key tile of a KV head
//   loop      over the query tiles that visit it, of all heads of its group:
//               S^T = K Q^T, dP^T = V dO^T     scores
//               P = exp(S - lse), dS = P (dP - delta)
//               dV += P^T dO, dK += dS^T Q     accumulate_keys, in the thread's memory
//               part = dS K                    accumulate, likewise
//               dQ += part                     in the workspace, in the order of the key tiles
//   order     a query tile counts the key tiles that were added to its dQ. A thread waits until all
//             before its own were; work is taken in ascending order of key tiles, so it waits for work that a
//             thread has. The last one stores dQ.
//
// So the bits of all gradients follow from the sequence alone, whatever the number of threads is.
//
//   shared                                    bytes at 4096 rows, 8 heads, 192/128
//     dq         fp32 sums                   25,165,824   [rows][heads][d_qk]
//     delta      fp32                           131,072
//     values     fp32, sum of P dP; with a sink_bias alone
//     added, selection                                    of the query tiles; of the lists
//   scratch of a thread                       bytes at 192/128, tiles of 128 x 256
//     kv         bf16 (fp16: fp32) K and V      163,840
//     packed_k   K once more, for dS K           98,304   of bf16 units
//     rows       the same of Q and dO            81,920
//     packed     Q and dO                       163,840   half of it in bf16
//     s, dp      S^T and dP^T                   262,144   P and dS of fp32
//     weights    P and dS of bf16               196,608
//     dk, dv     fp32                           360,448
//     dq         fp32, of one pair of tiles     106,496
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "core/float_value.h"
#include "cpu/backward.h"
#include "cpu/phases.h"
#include "cpu/varlen/kernels.h"
#include "cpu/varlen/selection.h"
#include "cpu/varlen/sequences.h"
#include "cpu/varlen/tiles.h"
#include "softmax/state.h"

namespace tilewise::cpu {
namespace {

/// Most columns of V.
constexpr int64_t kMaxHeadSize = 128;

struct Scratch {
  void* k;
  void* v;
  void* packed_k;  // for dS K
  void* q;
  void* d_out;
  void* packed_q;
  void* packed_d_out;
  float* s;
  float* dp;
  GradientWeights weights;
  float* dk;
  float* dv;
  float* dq;
  float* lse;  // +inf past the last row
  float* delta;
  float* values;  // null without a sink_bias
  int32_t* first;
  int32_t* last;
};

/// Books (workspace null) or grants one thread's scratch.
Scratch lay_out(const Isa& isa, const VarlenShape& shape, Ledger& ledger, void* workspace) {
  const VarlenTiles tiles = backward_tiles(shape);
  Scratch s{};
  Layouter layout(ledger, workspace);
  const int64_t element = shape.dtype == DType::kFP16 ? 4 : 2;
  layout.bytes(s.k, tiles.keys * shape.d_qk * element);
  layout.bytes(s.v, tiles.keys * shape.d_v * element);
  lay_out_packed_v(*isa.tile, shape.d_qk, layout, s.packed_k);
  layout.bytes(s.q, tiles.rows * shape.d_qk * element);
  layout.bytes(s.d_out, tiles.rows * shape.d_v * element);
  layout.bytes(s.packed_q, static_cast<int64_t>(isa.tile->packed_q_bytes(tiles.rows, shape.d_qk)));
  layout.bytes(s.packed_d_out, static_cast<int64_t>(isa.tile->packed_q_bytes(tiles.rows, shape.d_v)));
  layout.piece(s.s, std::max(tiles.keys, shape.d_qk) * tiles.rows);
  layout.piece(s.dp, std::max(tiles.keys, shape.d_v) * tiles.rows);
  s.weights = lay_out_weights(*isa.gradient, tiles.keys, tiles.rows, s.s, s.dp, layout);
  layout.piece(s.dk, tiles.keys * row_step(shape.d_qk));
  layout.piece(s.dv, tiles.keys * row_step(shape.d_v));
  layout.piece(s.dq, tiles.rows * row_step(shape.d_qk));
  layout.piece(s.lse, tiles.rows);
  layout.piece(s.delta, tiles.rows);
  if (shape.has_sink_bias) layout.piece(s.values, tiles.rows);
  layout.piece(s.first, tiles.rows);
  layout.piece(s.last, tiles.rows);
  return s;
}

/// What the whole call keeps in its workspace. Sequences of a wave share no row.
struct Shared {
  float* delta;    // [h_q][total_q]
  float* values;   // [h_q][total_q], where there is a sink_bias: added as dq is
  float* dq;       // [total_q][h_q][d_qk]; of rows that several key tiles add to
  int32_t* added;  // [query tiles of a wave][h_q]: key tiles in dq
  double* d_sink;  // [h_q]
};

Shared lay_out_shared(const VarlenShape& shape, const VarlenTiles& tiles, Ledger& ledger, void* workspace) {
  Shared s{};
  Layouter layout(ledger, workspace);
  layout.piece(s.delta, shape.h_q * shape.total_q);
  layout.piece(s.values, shape.has_sink_bias ? shape.h_q * shape.total_q : 0);
  layout.piece(s.dq, shape.total_q * shape.h_q * shape.d_qk);
  layout.piece(s.added, max_wave_tiles(shape.total_q, shape.batch, tiles.rows) * shape.h_q);
  layout.piece(s.d_sink, shape.has_sink_bias ? shape.h_q : 0);
  return s;
}

template <class T>
class BackwardRun {
 public:
  BackwardRun(const Isa& isa, const VarlenBackwardProblem& problem, const VarlenPlan& plan, void* workspace)
      : isa_(isa),
        problem_(problem),
        shape_(problem.shape),
        plan_(plan),
        tiles_{plan.tile_rows, plan.tile_keys},
        group_(shape_.h_q / shape_.h_kv),
        workspace_(workspace) {
    Ledger ledger;
    shared_ = lay_out_shared(shape_, tiles_, ledger, granted<std::byte>(workspace, plan.shared));
    if (shape_.selected) {
      Ledger of_selection;
      selection_ = lay_out_selection(shape_, of_selection, granted<std::byte>(workspace, plan.selection));
    }
  }

  void run() const {
    if (shape_.has_sink_bias) std::fill_n(shared_.d_sink, shape_.h_q, 0.0);
    clear_rows_outside();
    for_each_wave(problem_, tiles_.rows, tiles_.keys, granted<Sequence>(workspace_, plan_.sequences),
                  [this](const Wave& wave) { run_wave(wave); });
    if (!shape_.has_sink_bias) return;
    for (int64_t h = 0; h < shape_.h_q; ++h) {
      set_float_value(problem_.d_sink, shape_.sink_bias_dtype, h * problem_.d_sink_stride,
                      static_cast<float>(shared_.d_sink[h]));
    }
  }

 private:
  /// A query tile of a head that visits a key tile.
  struct Visitor {
    int64_t head;
    int64_t index;  // of the query tile, in the wave
    visit::Range queries;
    visit::Form form;
    int32_t rank;   // of the key tile, among those that the query tile visits
    int32_t count;  // of those
  };

  // ---- before the loop --------------------------------------------------------------------------

  void clear_rows(int64_t q_first, int64_t q_last, int64_t k_first, int64_t k_last) const {
    for (int64_t row = q_first; row < q_last; ++row) {
      for (int64_t h = 0; h < shape_.h_q; ++h)
        std::fill_n(problem_.dq.at(0, row, h), shape_.d_qk, uint16_t{0});
    }
    for (int64_t row = k_first; row < k_last; ++row) {
      for (int64_t h = 0; h < shape_.h_kv; ++h) {
        std::fill_n(problem_.dk.at(0, row, h), shape_.d_qk, uint16_t{0});
        std::fill_n(problem_.dv.at(0, row, h), shape_.d_v, uint16_t{0});
      }
    }
  }

  /// Gradients of the rows between sequences. Every other row is stored by its sequence.
  void clear_rows_outside() const {
    int64_t q_end = 0;
    int64_t k_end = 0;
    for_each_wave(problem_, tiles_.rows, tiles_.keys, granted<Sequence>(workspace_, plan_.sequences),
                  [&](const Wave& wave) {
                    for (int64_t i = 0; i < wave.count; ++i) {
                      const Sequence& s = wave.sequences[i];
                      clear_rows(q_end, s.q_begin, k_end, s.k_begin);
                      q_end = std::max(q_end, s.q_begin + s.rule.len_q);
                      k_end = std::max(k_end, s.k_begin + s.rule.len_k);
                    }
                  });
    clear_rows(q_end, shape_.total_q, k_end, shape_.total_k);
  }

  void run_wave(const Wave& wave) const {
    if (shape_.selected) build_selection(problem_, wave, plan_.threads, selection_);
#pragma omp parallel for num_threads(plan_.threads) schedule(static)
    for (int64_t i = 0; i < wave.query_tiles * shape_.h_q; ++i) {
      prepare_rows(wave, i / shape_.h_q, i % shape_.h_q);
    }
    run_key_tiles(wave);
    if (shape_.has_sink_bias) add_sink_gradients(wave);
  }

  int32_t& added_to(int64_t wave_tile, int64_t head) const {
    return shared_.added[wave_tile * shape_.h_q + head];
  }
  float* delta_of(int64_t head) const { return shared_.delta + head * shape_.total_q; }
  float* values_of(int64_t head) const { return shared_.values + head * shape_.total_q; }

  float delta_of_row(int64_t row, int64_t head) const {
    alignas(64) float d_out[kMaxHeadSize];
    alignas(64) float out[kMaxHeadSize];
    isa_.rows->widen(problem_.d_out.at(0, row, head), shape_.dtype, shape_.d_v, d_out);
    isa_.rows->widen(problem_.out.at(0, row, head), shape_.dtype, shape_.d_v, out);
    return row_delta(d_out, out, shape_.d_v);
  }

  void prepare_rows(const Wave& wave, int64_t wave_tile, int64_t head) const {
    const Sequence& sequence = wave.of_query_tile(wave_tile);
    const visit::Range queries = sequence.queries(wave_tile - sequence.first_query_tile, tiles_.rows);
    for (int64_t r = 0; r < queries.size(); ++r) {
      const int64_t row = sequence.q_begin + queries.begin + r;
      delta_of(head)[row] = delta_of_row(row, head);
      if (shape_.has_sink_bias) values_of(head)[row] = 0.0f;
    }
    added_to(wave_tile, head) = 0;
    if (key_tiles_of(sequence, queries, head) > 0) return;
    for (int64_t r = 0; r < queries.size(); ++r) {
      std::fill_n(problem_.dq.at(0, sequence.q_begin + queries.begin + r, head), shape_.d_qk, uint16_t{0});
    }
  }

  /// How many key tiles a query tile visits.
  int32_t key_tiles_of(const Sequence& sequence, visit::Range queries, int64_t head) const {
    const visit::IntervalVisit interval = key_interval(sequence, tiles_, queries);
    if (!shape_.selected) return interval.count();
    return selection_.visit(shape_, sequence, queries, head, interval).count();
  }

  /// In the order of rows, and in double: there may be many.
  void add_sink_gradients(const Wave& wave) const {
#pragma omp parallel for num_threads(plan_.threads) schedule(static)
    for (int64_t h = 0; h < shape_.h_q; ++h) {
      const float sink =
          float_value(problem_.sink_bias, shape_.sink_bias_dtype, h * problem_.sink_bias_stride);
      for (int64_t i = 0; i < wave.count; ++i) {
        const int64_t begin = wave.sequences[i].q_begin;
        for (int64_t row = begin; row < begin + wave.sequences[i].rule.len_q; ++row) {
          shared_.d_sink[h] -= sink_share(sink, *problem_.lse.at(0, row, h), values_of(h)[row]);
        }
      }
    }
  }

  // ---- the loop ---------------------------------------------------------------------------------

  void run_key_tiles(const Wave& wave) const {
    const int64_t pieces = wave.key_tiles * shape_.h_kv;
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(plan_.threads)
    {
      const TileProducts products(*isa_.tile);
      const InPhase other(Phase::kOther);
      Ledger ledger;
      const Scratch mine = lay_out(isa_, shape_, ledger,
                                   granted<std::byte>(workspace_, plan_.scratch) +
                                       static_cast<size_t>(omp_get_thread_num()) * plan_.scratch_bytes);
      for (int64_t i = taken++; i < pieces; i = taken++) {
        run_key_tile(wave, i / shape_.h_kv, i % shape_.h_kv, mine);
      }
    }
  }

  /// Calls `take(visitor)` for the query tiles that visit key tile number `index`, head after head, each in
  /// ascending order.
  template <class Take>
  void for_each_visitor(const Sequence& sequence, int32_t index, int64_t kv_head, const Take& take) const {
    for (int64_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
      if (shape_.selected) {
        for_each_selected_visitor(sequence, index, head, take);
        continue;
      }
      const auto keys = static_cast<int32_t>(tiles_.keys);
      const visit::Range whole{index * keys, index * keys + keys};
      const visit::IntervalVisit visitors = visit::visit_queries(
          sequence.rule, whole, static_cast<int32_t>(tiles_.rows), visit::TileOrigin::kSequence);
      for (int32_t place = 0; place < visitors.count(); ++place) {
        const int32_t tile = visitors.at(place).tile;
        const visit::Range queries = sequence.queries(tile, tiles_.rows);
        const visit::IntervalVisit visit = key_interval(sequence, tiles_, queries);
        take_if_visited(sequence, head, tile, queries, visit, visit.rank(index), take);
      }
    }
  }

  template <class Take>
  void for_each_selected_visitor(const Sequence& sequence, int32_t index, int64_t head,
                                 const Take& take) const {
    const int64_t tiles_of_block = shape_.q_block / tiles_.rows;
    selection_.for_each_selecting(shape_, sequence, index, head, [&](int64_t selecting, int32_t block_rank) {
      const int64_t end = std::min((selecting + 1) * tiles_of_block, sequence.query_tiles(tiles_.rows));
      for (int64_t tile = selecting * tiles_of_block; tile < end; ++tile) {
        const visit::Range queries = sequence.queries(tile, tiles_.rows);
        const visit::ListVisit visit =
            selection_.visit(shape_, sequence, queries, head, key_interval(sequence, tiles_, queries));
        take_if_visited(sequence, head, tile, queries, visit, visit.rank(index, block_rank), take);
      }
    });
  }

  template <class Visit, class Take>
  void take_if_visited(const Sequence& sequence, int64_t head, int64_t tile, visit::Range queries,
                       const Visit& visit, int32_t rank, const Take& take) const {
    if (rank < 0) return;
    take(Visitor{head, sequence.first_query_tile + tile, queries, visit.at(rank).form, rank, visit.count()});
  }

  void run_key_tile(const Wave& wave, int64_t wave_tile, int64_t kv_head, const Scratch& mine) const {
    const Sequence& sequence = wave.of_key_tile(wave_tile);
    const auto index = static_cast<int32_t>(wave_tile - sequence.first_key_tile);
    const visit::Range keys =
        visit::tile_range(index, static_cast<int32_t>(tiles_.keys), sequence.rule.len_k);
    NeededKeys needed(keys);
    for_each_visitor(sequence, index, kv_head, [&](const Visitor& visitor) {
      needed.add(visit::keys_seen_by_any(sequence.rule, visitor.queries));
    });
    {
      const InPhase phase(Phase::kDecode);
      const int64_t row = sequence.k_begin + keys.begin;
      load_keys(isa_, problem_.k, row, kv_head, shape_.d_qk, needed, static_cast<T*>(mine.k));
      load_keys(isa_, problem_.v, row, kv_head, shape_.d_v, needed, static_cast<T*>(mine.v));
    }
    KvTile<T> k{static_cast<const T*>(mine.k), shape_.d_qk, needed.count()};
    {
      const InPhase phase(Phase::kPackV);
      k = with_packed_v(ProductsOf<T>(*isa_.tile), k, shape_.d_qk, mine.packed_k);
    }
    bool first = true;
    for_each_visitor(sequence, index, kv_head, [&](const Visitor& visitor) {
      visit_query_tile(sequence, visitor, needed.range(), k, first, mine);
      first = false;
    });
    store_keys(sequence, keys, needed.count(), kv_head, mine);
  }

  void visit_query_tile(const Sequence& sequence, const Visitor& visitor, visit::Range keys,
                        const KvTile<T>& k, bool first, const Scratch& mine) const {
    const int64_t m = visitor.queries.size();
    const int64_t row = sequence.q_begin + visitor.queries.begin;
    const ProductsOf<T> products(*isa_.tile);
    load_query_tile(row, m, visitor.head, products, mine);
    const KvTile<T> v{static_cast<const T*>(mine.v), shape_.d_v, keys.size()};
    const KvTile<T> q{static_cast<const T*>(mine.q), shape_.d_qk, m};
    const KvTile<T> d_out{static_cast<const T*>(mine.d_out), shape_.d_v, m};
    {
      const InPhase phase(Phase::kScores);
      products.scores(k, shape_.d_qk, mine.packed_q, m, mine.s);
      products.scores(v, shape_.d_v, mine.packed_d_out, m, mine.dp);
    }
    {
      const InPhase phase(Phase::kSoftmax);
      GradientRows rows{mine.lse, mine.delta, nullptr, nullptr, mine.values};
      if (visitor.form == visit::Form::kRow) {
        fill_limits(sequence.rule, visitor.queries, keys, mine.first, mine.last);
        rows.first = mine.first;
        rows.last = mine.last;
      }
      isa_.gradient->tile(mine.s, mine.dp, keys.size(), padded_rows(m), shape_.softmax_scale, rows,
                          mine.weights, nullptr);
    }
    {
      const InPhase phase(Phase::kOutput);
      const WeightedRows<T> of_dv{mine.weights.p_keys, d_out};
      const WeightedRows<T> of_dk{mine.weights.ds_keys, q};
      products.accumulate_keys({&of_dv, 1}, keys.size(), shape_.d_v, first, mine.dv, row_step(shape_.d_v));
      products.accumulate_keys({&of_dk, 1}, keys.size(), shape_.d_qk, first, mine.dk, row_step(shape_.d_qk));
    }
    add_to_queries(visitor, row, k, products, mine);
  }

  void load_query_tile(int64_t row, int64_t m, int64_t head, const ProductsOf<T>& products,
                       const Scratch& mine) const {
    const InPhase phase(Phase::kPackQ);
    T* q = static_cast<T*>(mine.q);
    T* d_out = static_cast<T*>(mine.d_out);
    for (int64_t r = 0; r < m; ++r) {
      mine.lse[r] = *problem_.lse.at(0, row + r, head);
      mine.delta[r] = delta_of(head)[row + r];
      load_row(isa_, problem_.q.at(0, row + r, head), shape_.d_qk, q + r * shape_.d_qk);
      load_row(isa_, problem_.d_out.at(0, row + r, head), shape_.d_v, d_out + r * shape_.d_v);
    }
    std::fill(mine.lse + m, mine.lse + padded_rows(m), softmax::kInfinity);
    std::fill(mine.delta + m, mine.delta + padded_rows(m), 0.0f);
    products.pack_q(q, m, shape_.d_qk, mine.packed_q);
    products.pack_q(d_out, m, shape_.d_v, mine.packed_d_out);
  }

  /// dQ += dS K, once every key tile before this one was added; the last one stores the result.
  void add_to_queries(const Visitor& visitor, int64_t row, const KvTile<T>& k, const ProductsOf<T>& products,
                      const Scratch& mine) const {
    const int64_t m = visitor.queries.size();
    const int64_t d = shape_.d_qk;
    {
      const InPhase phase(Phase::kOutput);
      products.accumulate(mine.weights.ds_rows, k, m, d, nullptr, mine.dq, row_step(d));
    }
    const std::atomic_ref<int32_t> added(added_to(visitor.index, visitor.head));
    while (added.load(std::memory_order_acquire) != visitor.rank) std::this_thread::yield();
    const InPhase phase(Phase::kStore);
    for (int64_t r = 0; r < m; ++r) {
      float* part = mine.dq + r * row_step(d);
      float* sum = shared_.dq + ((row + r) * shape_.h_q + visitor.head) * d;
      const bool last = visitor.rank + 1 == visitor.count;
      if (visitor.rank > 0) {
        isa_.rows->merge(last ? part : sum, 1.0f, last ? sum : part, 1.0f, d);
      } else if (!last) {
        std::copy_n(part, d, sum);
      }
      if (last) isa_.rows->narrow(part, d, shape_.dtype, problem_.dq.at(0, row + r, visitor.head));
      if (mine.values != nullptr) values_of(visitor.head)[row + r] += mine.values[r];
    }
    added.store(visitor.rank + 1, std::memory_order_release);
  }

  /// The first `count` keys of a tile have gradients, the others none.
  void store_keys(const Sequence& sequence, visit::Range keys, int64_t count, int64_t kv_head,
                  const Scratch& mine) const {
    const InPhase phase(Phase::kStore);
    for (int64_t i = 0; i < keys.size(); ++i) {
      const int64_t row = sequence.k_begin + keys.begin + i;
      uint16_t* dk = problem_.dk.at(0, row, kv_head);
      uint16_t* dv = problem_.dv.at(0, row, kv_head);
      if (i < count) {
        isa_.rows->narrow(mine.dk + i * row_step(shape_.d_qk), shape_.d_qk, shape_.dtype, dk);
        isa_.rows->narrow(mine.dv + i * row_step(shape_.d_v), shape_.d_v, shape_.dtype, dv);
      } else {
        std::fill_n(dk, shape_.d_qk, uint16_t{0});
        std::fill_n(dv, shape_.d_v, uint16_t{0});
      }
    }
  }

  const Isa& isa_;
  const VarlenBackwardProblem& problem_;
  const VarlenBackwardShape& shape_;
  const VarlenPlan& plan_;
  VarlenTiles tiles_;
  int64_t group_;
  void* workspace_;
  Shared shared_;
  SelectionMemory selection_;
};

class BackwardKernel final : public Kernel<VarlenBackward> {
 public:
  explicit BackwardKernel(const Isa& isa) : isa_(isa) {}

  const std::string& name() const override { return isa_.kernel; }
  std::optional<std::string> refusal(const VarlenBackwardShape& shape, const Device& device) const override {
    return varlen_refusal(isa_, shape, device);
  }

  VarlenPlan plan(const VarlenBackwardShape& shape, const Device& device, Ledger& ledger) const override {
    const VarlenTiles tiles = backward_tiles(shape);
    Ledger one;
    lay_out(isa_, shape, one, nullptr);
    const int64_t pieces = std::max(max_wave_tiles(shape.total_k, shape.batch, tiles.keys) * shape.h_kv,
                                    max_wave_tiles(shape.total_q, shape.batch, tiles.rows) * shape.h_q);
    VarlenPlan plan = plan_tiles(shape, tiles, device, one.bytes(), pieces, ledger);
    Ledger shared;
    lay_out_shared(shape, tiles, shared, nullptr);
    plan.shared = ledger.book<std::byte>(static_cast<int64_t>(shared.bytes()));
    if (shape.selected) {
      Ledger selection;
      lay_out_selection(shape, selection, nullptr);
      plan.selection = ledger.book<std::byte>(static_cast<int64_t>(selection.bytes()));
    }
    return plan;
  }

  void run(const VarlenBackwardProblem& problem, const VarlenPlan& plan,
           const RunPlace& place) const override {
    if (problem.shape.dtype == DType::kFP16) {
      BackwardRun<float>(isa_, problem, plan, place.workspace).run();
    } else {
      BackwardRun<BF16>(isa_, problem, plan, place.workspace).run();
    }
  }

 private:
  const Isa& isa_;
};

}  // namespace

KernelTable<VarlenBackward> varlen_backward_kernels() {
  return table_of_isas<VarlenBackward, BackwardKernel>(tile_isas());
}

}  // namespace tilewise::cpu
