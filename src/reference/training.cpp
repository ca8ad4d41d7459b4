// The oracle of the training operators: each argument struct comes down to tiles of rows.
#include "reference/training.h"

#include <algorithm>
#include <functional>
#include <span>

#include "reference/training_loops.h"

namespace tilewise::reference {
namespace {

constexpr int64_t kRowsAtOnce = 8;
// Each has its own sums of dK, dV and d_sink, so that they do not depend on the number of threads.
constexpr int64_t kSlices = 4;

struct Sequence {
  int64_t index = 0;
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t k_begin = 0;
  int64_t k_end = 0;

  int64_t len_q() const { return q_end - q_begin; }
  int64_t len_k() const { return k_end - k_begin; }
};

// Which keys a query of its sequence sees, all numbers counted from the sequence's first row.
struct Mask {
  bool causal = false;
  Window window;

  bool sees(const Sequence& s, int64_t query, int64_t key) const {
    const int64_t position = s.len_k() - s.len_q() + query;
    if (causal && key > position) return false;
    if (window.left >= 0 && position - key > window.left) return false;
    return window.right < 0 || key - position <= window.right;
  }
};

// The key blocks that a query block selected; without a selection all.
struct Selection {
  TensorView q2k;
  int64_t q_block = 1;
  int64_t kv_block = 1;

  // The list of a head and a query block of the whole call.
  bool selects(int64_t head, int64_t block_row, int64_t kv_block_index) const {
    const bool per_head = q2k.rank() == 3;
    const int row_dim = per_head ? 1 : 0;
    if (block_row >= q2k.size(row_dim)) return false;
    const int32_t* entries = q2k.data_as<int32_t>() + block_row * q2k.stride(row_dim);
    if (per_head) entries += head * q2k.stride(0);
    for (int64_t i = 0; i < q2k.size(row_dim + 1); ++i) {
      if (entries[i * q2k.stride(row_dim + 1)] == kv_block_index) return true;
    }
    return false;
  }
};

struct Problem {
  TrainingTensors tensors;
  int64_t total_q = 0;
  int64_t h_q = 0;
  std::vector<uint8_t> written;  // [total_q]: whether the row belongs to a sequence
  int64_t num_tiles = 0;
  std::function<void(int64_t index, RowTile& tile)> fill_tile;  // called from several threads
};

// The rows [first, second) of each sequence in one tensor.
std::vector<std::pair<int64_t, int64_t>> row_ranges(const TensorView& cu_seqlens, int64_t rows,
                                                    int64_t max_seqlen) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t i = 1; i < cu_seqlens.size(0); ++i) {
    const int64_t begin = std::clamp<int64_t>(int_at(cu_seqlens, i - 1), 0, rows);
    const int64_t end = std::clamp<int64_t>(int_at(cu_seqlens, i), 0, rows);
    ranges.emplace_back(begin, std::clamp(end, begin, begin + max_seqlen));
  }
  return ranges;
}

// Some rows of one head of one sequence.
struct SequenceTile {
  Sequence sequence;
  int64_t head = 0;
  int64_t first = 0;      // counted in the sequence
  int64_t block_row = 0;  // the first query block of the sequence, in the rows of a selection
};

template <class Args>
std::vector<Sequence> sequences_of(const Args& args) {
  const auto q = row_ranges(args.cu_seqlens_q, args.q.size(0), args.max_seqlen_q);
  const auto k = row_ranges(args.cu_seqlens_k, args.k.size(0), args.max_seqlen_k);
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < q.size(); ++i) {
    sequences.push_back({static_cast<int64_t>(i), q[i].first, q[i].second, k[i].first, k[i].second});
  }
  return sequences;
}

// The last sequence that claims each row: where cu_seqlens decrease, several may, and the last one's results
// stay.
struct Owners {
  std::vector<int64_t> of_query;
  std::vector<int64_t> of_key;

  Owners(const std::vector<Sequence>& sequences, int64_t total_q, int64_t total_k)
      : of_query(static_cast<size_t>(total_q), -1), of_key(static_cast<size_t>(total_k), -1) {
    for (const Sequence& s : sequences) {
      std::fill(of_query.begin() + s.q_begin, of_query.begin() + s.q_end, s.index);
      std::fill(of_key.begin() + s.k_begin, of_key.begin() + s.k_end, s.index);
    }
  }
};

// The columns [key] of a tile that some row sees, row by row.
void fill_sequence_tile(const SequenceTile& at, const Mask& mask, const Selection& selection,
                        const Owners& owners, int64_t group, RowTile& tile) {
  const Sequence& s = at.sequence;
  const int64_t count = std::min(kRowsAtOnce, s.len_q() - at.first);
  const int64_t blocks = (s.len_k() + selection.kv_block - 1) / selection.kv_block;
  tile.kv_head = at.head / group;
  tile.rows.clear();
  tile.keys.clear();
  std::vector<std::vector<uint8_t>> selected;  // [row][kv block]
  for (int64_t r = 0; r < count; ++r) {
    const int64_t query = at.first + r;
    const int64_t token = s.q_begin + query;
    tile.rows.push_back({token, at.head, owners.of_query[static_cast<size_t>(token)] == s.index});
    std::vector<uint8_t>& row = selected.emplace_back(static_cast<size_t>(blocks), uint8_t{1});
    for (int64_t block = 0; selection.q2k && block < blocks; ++block) {
      row[static_cast<size_t>(block)] =
          selection.selects(at.head, at.block_row + query / selection.q_block, block);
    }
  }
  const auto sees = [&](int64_t r, int64_t key) {
    const size_t block = static_cast<size_t>(key / selection.kv_block);
    return selected[static_cast<size_t>(r)][block] != 0 && mask.sees(s, at.first + r, key);
  };
  std::vector<uint8_t> seen;  // [key, row]
  for (int64_t key = 0; key < s.len_k(); ++key) {
    bool any = false;
    for (int64_t r = 0; r < count; ++r) {
      seen.push_back(sees(r, key));
      any = any || seen.back() != 0;
    }
    if (any) {
      const int64_t row = s.k_begin + key;
      tile.keys.push_back({row, 0, owners.of_key[static_cast<size_t>(row)] == s.index});
    } else {
      seen.resize(seen.size() - static_cast<size_t>(count));
    }
  }
  const size_t rows = static_cast<size_t>(count);
  tile.sees.resize(seen.size());
  for (size_t i = 0; i < seen.size(); ++i) tile.sees[i % rows * tile.keys.size() + i / rows] = seen[i];
}

template <class Args>
Problem sequence_problem(const Args& args, const Selection& selection) {
  Problem p;
  p.tensors.q = args.q;
  p.tensors.k = args.k;
  p.tensors.v = args.v;
  p.tensors.sink_bias = args.sink_bias;
  p.tensors.scale = args.softmax_scale;
  p.total_q = args.q.size(0);
  p.h_q = args.q.size(1);
  p.written.assign(static_cast<size_t>(p.total_q), 0);
  std::vector<SequenceTile> tiles;
  int64_t block_row = 0;
  const std::vector<Sequence> sequences = sequences_of(args);
  Owners owners(sequences, p.total_q, args.k.size(0));
  for (const Sequence& s : sequences) {
    for (int64_t q = s.q_begin; q < s.q_end; ++q) p.written[static_cast<size_t>(q)] = 1;
    for (int64_t head = 0; head < p.h_q; ++head) {
      for (int64_t q = 0; q < s.len_q(); q += kRowsAtOnce) tiles.push_back({s, head, q, block_row});
    }
    block_row += (s.len_q() + selection.q_block - 1) / selection.q_block;
  }
  p.num_tiles = static_cast<int64_t>(tiles.size());
  const int64_t group = p.h_q / std::max<int64_t>(1, args.k.size(1));
  const Mask mask{args.causal, args.window};
  p.fill_tile = [tiles = std::move(tiles), mask, selection, owners = std::move(owners), group](
                    int64_t i, RowTile& tile) {
    fill_sequence_tile(tiles[static_cast<size_t>(i)], mask, selection, owners, group, tile);
  };
  return p;
}

template <class Args>
Selection selection_of(const Args& args) {
  return {args.q2k, args.q_block, args.kv_block};
}

template <class Args>
void use_backward_tensors(const Args& args, Problem& p) {
  p.tensors.d_out = args.d_out;
  p.tensors.out = args.out;
  p.tensors.lse = args.lse;
}

// Tiles of heads of one token; the token's list, in its order.
Problem token_list_problem(const SparsePrefillBwdArgs& args) {
  Problem p;
  p.tensors.q = args.q;
  p.tensors.k = args.kv;
  const std::vector<int64_t> v_shape = {args.kv.size(0), args.kv.size(1), args.d_v};
  p.tensors.v = TensorView(args.kv.data(), args.kv.dtype(), v_shape, args.kv.strides());
  p.tensors.sink_bias = args.sink_bias;
  p.tensors.scale = args.softmax_scale;
  use_backward_tensors(args, p);
  p.total_q = args.q.size(0);
  p.h_q = args.q.size(1);
  p.written.assign(static_cast<size_t>(p.total_q), 1);
  const int64_t tiles_a_token = (p.h_q + kRowsAtOnce - 1) / kRowsAtOnce;
  p.num_tiles = p.total_q * tiles_a_token;
  p.fill_tile = [&args, h_q = p.h_q, tiles_a_token](int64_t i, RowTile& tile) {
    const int64_t token = i / tiles_a_token;
    const int64_t first = i % tiles_a_token * kRowsAtOnce;
    tile.rows.clear();
    tile.keys.clear();
    for (int64_t h = first; h < std::min(h_q, first + kRowsAtOnce); ++h) tile.rows.push_back({token, h});
    const int64_t topk = args.indices.size(2);
    const int64_t count =
        args.topk_length ? std::clamp<int64_t>(int_at(args.topk_length, token), 0, topk) : topk;
    for (int64_t place = 0; place < count; ++place) {
      const int64_t row = args.indices.data_as<int32_t>()[token * args.indices.stride(0) + place];
      if (row >= 0 && row < args.kv.size(0)) tile.keys.push_back({row, place});
    }
    tile.sees.assign(tile.rows.size() * tile.keys.size(), 1);
  };
  return p;
}

// Forward ---------------------------------------------------------------------------------------------

template <class Real>
void finish_row(const TrainingTensors& t, int64_t head, const ForwardRow<Real>& row, size_t at,
                TrainingResult& result) {
  const LogSum<Real>& sum = row.sum;
  Real lse = row.lse;
  const size_t d_v = row.out.size();
  if (sum.kind == RowKind::kOrdinary) {
    for (size_t c = 0; c < d_v; ++c) result.out[at * d_v + c] = static_cast<double>(row.out[c] * row.factor);
    if (!result.sensitivity.empty()) {
      const Real largest = *std::max_element(row.squares.begin(), row.squares.end());
      result.sensitivity[at] = static_cast<double>(std::sqrt(largest) * row.factor);
    }
  } else {
    const bool lonely = sum.kind == RowKind::kLonely;
    for (size_t c = 0; c < d_v; ++c) result.out[at * d_v + c] = lonely ? 0 : kNan;
    if (lonely && t.sink(head) != -kInfinity) lse = static_cast<Real>(t.sink(head));
  }
  result.lse[at] = static_cast<double>(lse);
  result.max_logits[at] = static_cast<double>(sum.max);
}

template <class Real>
TrainingResult forward(const Problem& p) {
  TrainingResult result;
  result.s_q = p.total_q;
  result.h_q = p.h_q;
  result.d_v = p.tensors.d_v();
  result.written = p.written;
  const size_t rows = static_cast<size_t>(result.rows());
  result.out.assign(rows * static_cast<size_t>(result.d_v), kNan);
  result.lse.assign(rows, kNan);
  result.max_logits.assign(rows, kNan);
  const bool with_deviations = std::is_same_v<Real, double>;
  if (with_deviations) result.sensitivity.resize(rows);
#pragma omp parallel
  {
    RowTile tile;
    ForwardTile<Real> loops;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < p.num_tiles; ++i) {
      p.fill_tile(i, tile);
      loops.run(p.tensors, tile, with_deviations);
      for (size_t r = 0; r < tile.rows.size(); ++r) {
        const auto [token, head, kept] = tile.rows[r];
        if (!kept) continue;
        finish_row(p.tensors, head, loops.rows[r], static_cast<size_t>(result.row(0, token, head)), result);
      }
    }
  }
  return result;
}

TrainingResult forward(const Problem& p, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kDouble ? forward<double>(p) : forward<float>(p);
}

// Backward --------------------------------------------------------------------------------------------

template <class Real>
struct AllSums {
  std::vector<RowGradient<Real>> dq;       // [total_q, h_q]
  std::vector<GradientSums<Real>> slices;  // of dK, dV and d_sink
  std::vector<RowGradient<Real>> kl;       // [total_q, topk]; empty where there is none
};

// What a row adds to the gradient of its head's sink_bias: -exp(sink - lse) * sum(P * dP).
template <class Real>
void add_to_sink(Real sink, const typename BackwardTile<Real>::Row& row, RowGradient<Real>& sum) {
  // A sink of -inf has no part in anything, one of +inf leaves nothing that moves.
  if (std::isinf(sink) || row.lse == static_cast<Real>(kInfinity)) return;
  const Real weight = std::exp(sink - row.lse);
  sum.add(-weight, {row.value});
  const double size = static_cast<double>(std::fabs(row.value) * (1 + std::fabs(sink) + std::fabs(row.lse)));
  const double rounding = BackwardTile<Real>::kSumRounding * (size + row.value_size);
  sum.add_errors(static_cast<double>(weight) * (std::sqrt(row.value_noise) + rounding), 0, 1);
}

template <class Real>
void run_slice(const Problem& p, int64_t slice, int64_t topk, AllSums<Real>& all) {
  GradientSums<Real>& sums = all.slices[static_cast<size_t>(slice)];
  const size_t kv_rows = static_cast<size_t>(p.tensors.k.size(0) * p.tensors.k.size(1));
  sums.dk.resize(kv_rows);
  sums.dv.resize(kv_rows);
  sums.sink.resize(static_cast<size_t>(p.h_q));
  RowTile tile;
  BackwardTile<Real> loops;
  // A token's tiles are neighbours; the entries of kl_target belong to one slice, as it takes whole tokens.
  const int64_t tiles_a_token = topk > 0 ? (p.h_q + kRowsAtOnce - 1) / kRowsAtOnce : 1;
  const int64_t units = p.num_tiles / tiles_a_token;
  const int64_t begin = units * slice / kSlices * tiles_a_token;
  const int64_t end = units * (slice + 1) / kSlices * tiles_a_token;
  for (int64_t i = begin; i < end; ++i) {
    p.fill_tile(i, tile);
    loops.run(p.tensors, tile, sums, [&](int64_t token, int64_t place, Real probability, double noise) {
      if (topk == 0) return;
      RowGradient<Real>& entry = all.kl[static_cast<size_t>(token * topk + place)];
      entry.sums.resize(1);
      entry.sums[0] += probability;
      entry.noise += noise * noise;
    });
    for (size_t r = 0; r < tile.rows.size(); ++r) {
      const auto [token, head, kept] = tile.rows[r];
      add_to_sink(static_cast<Real>(p.tensors.sink(head)), loops.rows[r],
                  sums.sink[static_cast<size_t>(head)]);
      if (!kept) continue;
      all.dq[static_cast<size_t>(token * p.h_q + head)] = std::move(loops.rows[r].dq);
    }
  }
}

// `factor` is the scale, where the sums are without it.
template <class Real>
GradientTensor finish(const std::vector<RowGradient<Real>>& rows, int64_t row_length, float factor) {
  GradientTensor tensor;
  tensor.row_length = row_length;
  const size_t length = static_cast<size_t>(row_length);
  tensor.values.resize(rows.size() * length);
  double noise = 0;
  double draw = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    tensor.reached.push_back(rows[r].reached());
    if (!rows[r].reached()) continue;
    for (size_t c = 0; c < length; ++c) {
      tensor.values[r * length + c] = static_cast<double>(rows[r].sums[c] * static_cast<Real>(factor));
    }
    // Rows with an inf or a NaN are not part of any sum of errors.
    if (!std::isfinite(rows[r].noise) || !std::isfinite(rows[r].draw)) continue;
    noise += rows[r].noise;
    draw += rows[r].draw;
  }
  tensor.noise = std::sqrt(noise) * std::fabs(factor);
  tensor.draw = std::sqrt(draw) * std::fabs(factor);
  return tensor;
}

// Places of kl_target: topk a token, 0 where there is none.
template <class Real>
Gradients backward(const Problem& p, int64_t topk) {
  AllSums<Real> all;
  all.dq.resize(static_cast<size_t>(p.total_q * p.h_q));
  all.slices.resize(kSlices);
  all.kl.resize(static_cast<size_t>(p.total_q * topk));
#pragma omp parallel for schedule(dynamic)
  for (int64_t slice = 0; slice < kSlices; ++slice) run_slice(p, slice, topk, all);

  GradientSums<Real>& total = all.slices[0];
  for (size_t slice = 1; slice < all.slices.size(); ++slice) {
    for (size_t row = 0; row < total.dk.size(); ++row) {
      total.dk[row].add(all.slices[slice].dk[row]);
      total.dv[row].add(all.slices[slice].dv[row]);
    }
    for (size_t head = 0; head < total.sink.size(); ++head)
      total.sink[head].add(all.slices[slice].sink[head]);
  }
  Gradients gradients;
  gradients.dq = finish(all.dq, p.tensors.d_qk(), p.tensors.scale);
  gradients.dk = finish(total.dk, p.tensors.d_qk(), p.tensors.scale);
  gradients.dv = finish(total.dv, p.tensors.d_v(), 1.0f);
  gradients.kl_target = finish(all.kl, 1, 1.0f);
  if (p.tensors.sink_bias) gradients.d_sink = finish(total.sink, 1, 1.0f);
  return gradients;
}

Gradients backward(const Problem& p, int64_t topk, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kDouble ? backward<double>(p, topk) : backward<float>(p, topk);
}

// The gradient of a tensor whose first columns are values too.
GradientTensor sum_of(const GradientTensor& keys, const GradientTensor& values) {
  GradientTensor sum = keys;
  for (size_t i = 0; i < values.values.size(); ++i) {
    const size_t row = i / static_cast<size_t>(values.row_length);
    const size_t column = i % static_cast<size_t>(values.row_length);
    sum.values[row * static_cast<size_t>(keys.row_length) + column] += values.values[i];
  }
  sum.noise = std::hypot(keys.noise, values.noise);
  sum.draw = std::hypot(keys.draw, values.draw);
  return sum;
}

}  // namespace

TrainingResult training_forward(const DensePrefillFwdArgs& args, Arithmetic arithmetic) {
  return forward(sequence_problem(args, {}), arithmetic);
}

TrainingResult training_forward(const BlockSparsePrefillFwdArgs& args, Arithmetic arithmetic) {
  return forward(sequence_problem(args, selection_of(args)), arithmetic);
}

Gradients training_backward(const DensePrefillBwdArgs& args, Arithmetic arithmetic) {
  Problem p = sequence_problem(args, {});
  use_backward_tensors(args, p);
  return backward(p, 0, arithmetic);
}

Gradients training_backward(const BlockSparsePrefillBwdArgs& args, Arithmetic arithmetic) {
  Problem p = sequence_problem(args, selection_of(args));
  use_backward_tensors(args, p);
  return backward(p, 0, arithmetic);
}

Gradients training_backward(const SparsePrefillBwdArgs& args, Arithmetic arithmetic) {
  Gradients gradients = backward(token_list_problem(args), args.indices.size(2), arithmetic);
  gradients.dkv = sum_of(gradients.dk, gradients.dv);
  gradients.dk = {};
  gradients.dv = {};
  return gradients;
}

}  // namespace tilewise::reference
