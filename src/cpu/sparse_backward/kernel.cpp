// sparse_prefill_bwd on the CPU.
//
//   work      a token; threads take tokens in ascending order
//   a token   its valid list entries, sorted by row; Q and dO of all its heads, packed; delta = sum(dO * O)
//   loop      over tiles of 256 entries, and over tiles of 128 heads in it:
//               S^T = K Q^T, dP^T = V dO^T          scores
//               P = exp(S - lse), dS = P (dP - delta)
//               dQ += dS K                           accumulate, in the thread's memory
//               part = dS^T Q, its V columns + P^T dO   accumulate_keys, both in one sum
//             then dKV[row] += part, in the order of the tokens (order.h). With a single tile of heads, and Q
//             and dO packed for it, part is made of 32 entries at a time, right before it is added
//   after     dKV to bf16, rows that no list has to 0; d_sink in the order of the tokens
//
// So the bits of all gradients are the same whatever the number of threads is.
//
//   shared                                          bytes at s_kv 32768, d 576
//     dkv        fp32 sums                            75,497,472
//     values     fp32, sums of P dP; with a sink_bias alone
//   scratch of a thread, bytes at 128 heads, d 576
//     kv         bf16 K                                  311,296
//     s, dp      S^T and dP^T                            262,144   P and dS of fp32
//     weights    P and dS of bf16                        196,608
//     part       fp32                                    606,208
//     rows       bf16 Q and dO, for each 128 heads       278,528
//     packed     the same for the scores                 557,056   half of it in bf16
//     columns    the same for accumulate_keys            557,056   of bf16 units, a single tile of heads
//     dq         fp32                                    303,104
#include "cpu/sparse_backward/kernel.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "core/float_value.h"
#include "cpu/backward.h"
#include "cpu/isa.h"
#include "cpu/phases.h"
#include "cpu/sparse_backward/order.h"
#include "softmax/state.h"
#include "visit/interval.h"

namespace tilewise::cpu {
namespace {

/// The scratch memory of all threads takes at most this much.
constexpr size_t kScratchBytes = size_t{160} << 20;
/// Rows of dKV that are added between two looks at the other tokens.
constexpr int64_t kRowsAtOnce = 32;

int64_t head_tiles(const SparseBackwardShape& shape) { return visit::ceil_div(shape.h_q, kMaxTileRows); }
/// Heads of a tile, the last one of which may have fewer.
int64_t tile_heads(const SparseBackwardShape& shape) {
  return padded_rows(visit::ceil_div(shape.h_q, head_tiles(shape)));
}

/// Whether a part of dKV is made right before it is added, kRowsAtOnce rows of it at a time.
bool makes_small_parts(const Isa& isa, const SparseBackwardShape& shape) {
  return isa.tile->pack_v != nullptr && head_tiles(shape) == 1;
}

/// A list entry; entries order by row, those of one row by their place in the list.
struct Entry {
  int32_t row;
  int32_t place;

  bool operator<(const Entry& other) const {
    return row != other.row ? row < other.row : place < other.place;
  }
};

/// What a token keeps of one tile of its heads.
struct HeadTile {
  BF16* q;
  BF16* d_out;
  void* packed_q;
  void* packed_d_out;
  void* q_columns;  // packed as V is
  void* d_out_columns;
  float* lse;  // +inf past the last head
  float* delta;
  float* values;  // sums of P dP, where there is a sink
  float* dq;      // [heads][row_step(d_qk)]
};

struct Scratch {
  Entry* entries;
  RowRef* refs;
  BF16* kv;
  float* s;
  float* dp;
  GradientWeights weights;
  float* part;  // [kMaxTileKeys or kRowsAtOnce][row_step(d_qk)]
  float* key_sums;
  float* ones;
  std::byte* heads;  // tile after tile
  size_t head_bytes;
};

/// Books (workspace null) or grants what one tile of heads keeps.
HeadTile lay_out_heads(const Isa& isa, const SparseBackwardShape& shape, Ledger& ledger, void* workspace) {
  const int64_t rows = tile_heads(shape);
  HeadTile tile{};
  Layouter layout(ledger, workspace);
  layout.piece(tile.q, rows * shape.d_qk);
  layout.piece(tile.d_out, rows * shape.d_v);
  layout.bytes(tile.packed_q, static_cast<int64_t>(isa.tile->packed_q_bytes(rows, shape.d_qk)));
  layout.bytes(tile.packed_d_out, static_cast<int64_t>(isa.tile->packed_q_bytes(rows, shape.d_v)));
  if (makes_small_parts(isa, shape)) {
    lay_out_packed_v(*isa.tile, shape.d_qk, layout, tile.q_columns);
    lay_out_packed_v(*isa.tile, shape.d_v, layout, tile.d_out_columns);
  }
  layout.piece(tile.lse, rows);
  layout.piece(tile.delta, rows);
  if (shape.has_sink_bias) layout.piece(tile.values, rows);
  layout.piece(tile.dq, rows * row_step(shape.d_qk));
  return tile;
}

/// Books (workspace null) or grants one thread's scratch.
Scratch lay_out(const Isa& isa, const SparseBackwardShape& shape, Ledger& ledger, void* workspace) {
  const int64_t rows = tile_heads(shape);
  Scratch s{};
  Layouter layout(ledger, workspace);
  layout.piece(s.entries, shape.topk);
  layout.piece(s.refs, kMaxTileKeys);
  layout.piece(s.kv, kMaxTileKeys * key_step<BF16>(shape.d_qk));
  layout.piece(s.s, kMaxTileKeys * rows);
  layout.piece(s.dp, kMaxTileKeys * rows);
  s.weights = lay_out_weights(*isa.gradient, kMaxTileKeys, rows, s.s, s.dp, layout);
  const int64_t part_rows = makes_small_parts(isa, shape) ? kRowsAtOnce : kMaxTileKeys;
  layout.piece(s.part, part_rows * row_step(shape.d_qk));
  layout.piece(s.key_sums, kMaxTileKeys);
  layout.piece(s.ones, rows);
  Ledger of_heads;
  lay_out_heads(isa, shape, of_heads, nullptr);
  s.head_bytes = of_heads.bytes();
  layout.piece(s.heads, head_tiles(shape) * static_cast<int64_t>(s.head_bytes));
  return s;
}

/// What the whole call keeps in its workspace.
struct Shared {
  int32_t* frontiers;  // [s_q]
  uint8_t* touched;    // [s_kv]: whether dkv has the row yet
  float* dkv;          // [s_kv][d_qk]
  float* values;       // [s_q][h_q], where there is a sink
};

Shared lay_out_shared(const SparseBackwardShape& shape, Ledger& ledger, void* workspace) {
  Shared s{};
  Layouter layout(ledger, workspace);
  layout.piece(s.frontiers, shape.s_q);
  layout.piece(s.touched, shape.s_kv);
  layout.piece(s.dkv, shape.s_kv * shape.d_qk);
  layout.piece(s.values, shape.has_sink_bias ? shape.s_q * shape.h_q : 0);
  return s;
}

class BackwardRun {
 public:
  BackwardRun(const Isa& isa, const SparseBackwardProblem& problem, const SparseBackwardPlan& plan,
              void* workspace)
      : isa_(isa),
        problem_(problem),
        shape_(problem.shape),
        plan_(plan),
        workspace_(workspace),
        small_parts_(makes_small_parts(isa, problem.shape)) {
    Ledger ledger;
    shared_ = lay_out_shared(shape_, ledger, granted<std::byte>(workspace, plan.shared));
  }

  void run() const {
    std::fill_n(shared_.frontiers, shape_.s_q, 0);
    std::fill_n(shared_.touched, shape_.s_kv, uint8_t{0});
    std::atomic<int64_t> taken{0};
#pragma omp parallel num_threads(plan_.threads)
    {
      run_tokens(taken);
#pragma omp barrier
#pragma omp for schedule(static) nowait
      for (int64_t row = 0; row < shape_.s_kv; ++row) store_key(row);
#pragma omp for schedule(static)
      for (int64_t head = 0; head < (shape_.has_sink_bias ? shape_.h_q : 0); ++head) store_sink(head);
    }
  }

 private:
  void run_tokens(std::atomic<int64_t>& taken) const {
    const TileProducts products(*isa_.tile);
    const InPhase other(Phase::kOther);
    Ledger ledger;
    auto* memory = granted<std::byte>(
        workspace_, plan_.scratch + static_cast<size_t>(omp_get_thread_num()) * plan_.scratch_bytes);
    const Scratch mine = lay_out(isa_, shape_, ledger, memory);
    std::fill_n(mine.ones, plan_.tile_rows, 1.0f);
    int64_t first_open = 0;
    for (int64_t token = taken++; token < shape_.s_q; token = taken++) run_token(token, mine, &first_open);
  }

  void run_token(int64_t token, const Scratch& mine, int64_t* first_open) const {
    const TokenOrder order(shared_.frontiers);
    const int64_t count = gather_entries(token, mine.entries);
    order.set(token, frontier_at(mine, 0, count));
    for (int64_t tile = 0; tile < head_tiles(shape_); ++tile) load_heads(token, tile, mine);
    for (int64_t first = 0; first < count; first += kMaxTileKeys) {
      const int64_t keys = std::min(kMaxTileKeys, count - first);
      load_keys(mine.entries + first, keys, mine);
      for (int64_t tile = 0; tile < head_tiles(shape_); ++tile) {
        visit_heads(token, tile, keys, first == 0, mine);
      }
      store_probabilities(token, mine.entries + first, keys, mine);
      add_part(token, first, keys, count, mine, first_open);
    }
    for (int64_t tile = 0; tile < head_tiles(shape_); ++tile) store_heads(token, tile, count > 0, mine);
  }

  // ---- a token's entries ------------------------------------------------------------------------

  /// The valid ones, sorted. Their number.
  int64_t gather_entries(int64_t token, Entry* entries) const {
    const InPhase phase(Phase::kGather);
    int64_t listed = shape_.topk;
    if (problem_.length != nullptr) {
      listed = std::clamp<int64_t>(problem_.length[token * problem_.length_stride], 0, shape_.topk);
    }
    if (problem_.kl_target != nullptr) {
      std::fill_n(problem_.kl_target + token * problem_.kl_target_stride, shape_.topk, 0.0f);
    }
    const int32_t* list = problem_.indices + token * problem_.indices_stride;
    int64_t count = 0;
    for (int64_t place = 0; place < listed; ++place) {
      const int32_t row = list[place];
      if (row >= 0 && row < shape_.s_kv) entries[count++] = {row, static_cast<int32_t>(place)};
    }
    std::sort(entries, entries + count);
    return count;
  }

  /// Where a token's frontier is once its first `added` entries are added.
  static int32_t frontier_at(const Scratch& mine, int64_t added, int64_t count) {
    return added < count ? mine.entries[added].row : TokenOrder::kDone;
  }

  void load_keys(const Entry* entries, int64_t keys, const Scratch& mine) const {
    const InPhase phase(Phase::kDecode);
    for (int64_t k = 0; k < keys; ++k) {
      const uint16_t* row = problem_.kv + entries[k].row * problem_.kv_stride;
      mine.refs[k] = {reinterpret_cast<const uint8_t*>(row), 0};
    }
    isa_.decode->plain_bf16(mine.refs, keys, shape_.d_qk, mine.kv, key_step<BF16>(shape_.d_qk));
    std::fill_n(mine.key_sums, keys, 0.0f);
  }

  void store_probabilities(int64_t token, const Entry* entries, int64_t keys, const Scratch& mine) const {
    if (problem_.kl_target == nullptr) return;
    float* to = problem_.kl_target + token * problem_.kl_target_stride;
    for (int64_t k = 0; k < keys; ++k) to[entries[k].place] = mine.key_sums[k];
  }

  // ---- a token's heads --------------------------------------------------------------------------

  int64_t heads_of(int64_t tile) const {
    return std::min(plan_.tile_rows, shape_.h_q - tile * plan_.tile_rows);
  }

  HeadTile head_tile(int64_t tile, const Scratch& mine) const {
    Ledger ledger;
    return lay_out_heads(isa_, shape_, ledger, mine.heads + static_cast<size_t>(tile) * mine.head_bytes);
  }

  void load_heads(int64_t token, int64_t tile, const Scratch& mine) const {
    const HeadTile heads = head_tile(tile, mine);
    const int64_t m = heads_of(tile);
    alignas(64) float d_out[512];
    alignas(64) float out[512];
    {
      const InPhase phase(Phase::kQueries);
      for (int64_t r = 0; r < m; ++r) {
        const int64_t head = tile * plan_.tile_rows + r;
        const uint16_t* d_out_row = problem_.d_out.at(0, token, head);
        std::memcpy(heads.q + r * shape_.d_qk, problem_.q.at(0, token, head),
                    static_cast<size_t>(shape_.d_qk) * sizeof(BF16));
        std::memcpy(heads.d_out + r * shape_.d_v, d_out_row, static_cast<size_t>(shape_.d_v) * sizeof(BF16));
        isa_.rows->widen(d_out_row, DType::kBF16, shape_.d_v, d_out);
        isa_.rows->widen(problem_.out.at(0, token, head), DType::kBF16, shape_.d_v, out);
        heads.lse[r] = *problem_.lse.at(0, token, head);
        heads.delta[r] = row_delta(d_out, out, shape_.d_v);
        if (shape_.has_sink_bias) shared_.values[token * shape_.h_q + head] = 0.0f;
      }
      std::fill(heads.lse + m, heads.lse + padded_rows(m), softmax::kInfinity);
      std::fill(heads.delta + m, heads.delta + padded_rows(m), 0.0f);
    }
    const InPhase phase(Phase::kPackQ);
    isa_.tile->pack_q_bf16(heads.q, m, shape_.d_qk, heads.packed_q);
    isa_.tile->pack_q_bf16(heads.d_out, m, shape_.d_v, heads.packed_d_out);
    if (!small_parts_) return;
    isa_.tile->pack_v({heads.q, shape_.d_qk, m}, shape_.d_qk, heads.q_columns);
    isa_.tile->pack_v({heads.d_out, shape_.d_v, m}, shape_.d_v, heads.d_out_columns);
  }

  /// One tile of heads against the loaded keys. `first` at the token's first keys.
  void visit_heads(int64_t token, int64_t tile, int64_t keys, bool first, const Scratch& mine) const {
    const HeadTile heads = head_tile(tile, mine);
    const int64_t m = heads_of(tile);
    const KvTile<BF16> k{mine.kv, key_step<BF16>(shape_.d_qk), keys};  // and V, which is its first columns
    {
      const InPhase phase(Phase::kScores);
      isa_.tile->scores(k, shape_.d_qk, heads.packed_q, m, mine.s);
      isa_.tile->scores(k, shape_.d_v, heads.packed_d_out, m, mine.dp);
    }
    {
      const InPhase phase(Phase::kSoftmax);
      isa_.gradient->tile(mine.s, mine.dp, keys, padded_rows(m), shape_.softmax_scale,
                          {heads.lse, heads.delta, nullptr, nullptr, heads.values}, mine.weights,
                          shape_.has_kl_target ? mine.key_sums : nullptr);
      if (shape_.has_sink_bias) {
        float* values = shared_.values + token * shape_.h_q + tile * plan_.tile_rows;
        for (int64_t r = 0; r < m; ++r) values[r] += heads.values[r];
      }
    }
    const InPhase phase(Phase::kOutput);
    isa_.tile->accumulate(mine.weights.ds_rows, k, m, shape_.d_qk, first ? nullptr : mine.ones, heads.dq,
                          row_step(shape_.d_qk));
    if (!small_parts_) multiply_part(tile, 0, keys, mine);
  }

  /// The part of dKV that the keys [begin, end) have from one tile of heads.
  void multiply_part(int64_t tile, int64_t begin, int64_t end, const Scratch& mine) const {
    const HeadTile heads = head_tile(tile, mine);
    const int64_t m = heads_of(tile);
    const bool packed = small_parts_;
    const KvTile<BF16> q{heads.q, shape_.d_qk, m, packed ? heads.q_columns : nullptr};
    const KvTile<BF16> d_out{heads.d_out, shape_.d_v, m, packed ? heads.d_out_columns : nullptr};
    const void* p = weights_from(*isa_.gradient, mine.weights.p_keys, begin, padded_rows(m));
    const void* ds = weights_from(*isa_.gradient, mine.weights.ds_keys, begin, padded_rows(m));
    const int64_t ld = row_step(shape_.d_qk);
    const std::array<WeightedRows<BF16>, 2> terms{{{ds, q}, {p, d_out}}};
    isa_.tile->accumulate_keys(terms, end - begin, shape_.d_v, tile == 0, mine.part, ld);
    if (shape_.d_v == shape_.d_qk) return;
    const WeightedRows<BF16> rest{ds, columns_from(q, shape_.d_v)};  // columns that V has not
    isa_.tile->accumulate_keys({&rest, 1}, end - begin, shape_.d_qk - shape_.d_v, tile == 0,
                               mine.part + shape_.d_v, ld);
  }

  void store_heads(int64_t token, int64_t tile, bool any_key, const Scratch& mine) const {
    const InPhase phase(Phase::kStore);
    const HeadTile heads = head_tile(tile, mine);
    for (int64_t r = 0; r < heads_of(tile); ++r) {
      uint16_t* to = problem_.dq.at(0, token, tile * plan_.tile_rows + r);
      if (any_key) {
        isa_.rows->narrow(heads.dq + r * row_step(shape_.d_qk), shape_.d_qk, DType::kBF16, to);
      } else {
        std::fill_n(to, shape_.d_qk, uint16_t{0});
      }
    }
  }

  // ---- sums over tokens -------------------------------------------------------------------------

  void add_part(int64_t token, int64_t first, int64_t keys, int64_t count, const Scratch& mine,
                int64_t* first_open) const {
    const TokenOrder order(shared_.frontiers);
    for (int64_t begin = 0; begin < keys; begin += kRowsAtOnce) {
      const int64_t end = std::min(begin + kRowsAtOnce, keys);
      if (small_parts_) {
        const InPhase phase(Phase::kOutput);
        multiply_part(0, begin, end, mine);
      }
      const float* part = mine.part + (small_parts_ ? 0 : begin * row_step(shape_.d_qk));
      order.wait(token, mine.entries[first + end - 1].row, first_open);
      {
        const InPhase phase(Phase::kStore);
        for (int64_t k = begin; k < end; ++k) {
          if (k + 1 < keys) fetch_key(mine.entries[first + k + 1].row);
          add_to_key(mine.entries[first + k].row, part + (k - begin) * row_step(shape_.d_qk));
        }
      }
      order.set(token, frontier_at(mine, first + end, count));
    }
  }

  /// The row's sums lie anywhere.
  void fetch_key(int64_t row) const {
    const float* sums = shared_.dkv + row * shape_.d_qk;
    for (int64_t c = 0; c < shape_.d_qk; c += 16) __builtin_prefetch(sums + c, 1);
  }

  void add_to_key(int64_t row, const float* part) const {
    float* sums = shared_.dkv + row * shape_.d_qk;
    if (shared_.touched[row] != 0) {
      isa_.rows->merge(sums, 1.0f, part, 1.0f, shape_.d_qk);
    } else {
      shared_.touched[row] = 1;
      std::copy_n(part, shape_.d_qk, sums);
    }
  }

  void store_key(int64_t row) const {
    uint16_t* to = problem_.dkv + row * problem_.dkv_stride;
    if (shared_.touched[row] != 0) {
      isa_.rows->narrow(shared_.dkv + row * shape_.d_qk, shape_.d_qk, DType::kBF16, to);
    } else {
      std::fill_n(to, shape_.d_qk, uint16_t{0});
    }
  }

  /// In the order of tokens, and in double: there may be many.
  void store_sink(int64_t head) const {
    const float sink =
        float_value(problem_.sink_bias, shape_.sink_bias_dtype, head * problem_.sink_bias_stride);
    double sum = 0;
    for (int64_t token = 0; token < shape_.s_q; ++token) {
      sum -= sink_share(sink, *problem_.lse.at(0, token, head), shared_.values[token * shape_.h_q + head]);
    }
    set_float_value(problem_.d_sink, shape_.sink_bias_dtype, head * problem_.d_sink_stride,
                    static_cast<float>(sum));
  }

  const Isa& isa_;
  const SparseBackwardProblem& problem_;
  const SparseBackwardShape& shape_;
  const SparseBackwardPlan& plan_;
  void* workspace_;
  bool small_parts_;
  Shared shared_;
};

class BackwardKernel final : public Kernel<SparseBackward> {
 public:
  explicit BackwardKernel(const Isa& isa) : isa_(isa) {}

  const std::string& name() const override { return isa_.kernel; }
  std::optional<std::string> refusal(const SparseBackwardShape&, const Device& device) const override {
    return isa_refusal(isa_, device);
  }

  SparseBackwardPlan plan(const SparseBackwardShape& shape, const Device& device,
                          Ledger& ledger) const override {
    SparseBackwardPlan plan;
    plan.tile_rows = tile_heads(shape);
    plan.tile_keys = kMaxTileKeys;
    Ledger one;
    lay_out(isa_, shape, one, nullptr);
    plan.scratch_bytes = one.bytes();
    const auto fit = static_cast<int>(std::max<size_t>(kScratchBytes / one.bytes(), 1));
    plan.threads = useful_threads(std::min(device.threads, fit), shape.s_q);
    Ledger shared;
    lay_out_shared(shape, shared, nullptr);
    plan.shared = ledger.book<std::byte>(static_cast<int64_t>(shared.bytes()));
    plan.scratch = ledger.book<std::byte>(static_cast<int64_t>(plan.scratch_bytes) * plan.threads);
    return plan;
  }

  void run(const SparseBackwardProblem& problem, const SparseBackwardPlan& plan,
           const RunPlace& place) const override {
    BackwardRun(isa_, problem, plan, place.workspace).run();
  }

 private:
  const Isa& isa_;
};

}  // namespace

KernelTable<SparseBackward> sparse_backward_kernels() {
  return table_of_isas<SparseBackward, BackwardKernel>(tile_isas());
}

}  // namespace tilewise::cpu
