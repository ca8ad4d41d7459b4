// Attention of a few query rows to one list of keys, forward and backward, for the oracle of the training
// operators.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/numeric.h"
#include "reference/attend.h"
#include "reference/views.h"
#include "tilewise/tensor.h"

namespace tilewise::reference {

// Rows that go through one list of keys together.
struct RowTile {
  struct Row {
    int64_t token;
    int64_t head;
    bool kept = true;  // whether this tile's results are those that stay, where several claim the row
  };
  struct Key {
    int64_t row;    // of K and V
    int64_t place;  // in the list that it comes from
    bool kept = true;
  };

  int64_t kv_head = 0;
  std::vector<Row> rows;
  std::vector<Key> keys;      // duplicates as often as they are listed
  std::vector<uint8_t> sees;  // [rows, keys]

  bool sees_key(size_t row, size_t key) const { return sees[row * keys.size() + key] != 0; }
};

// Tensors that the loops read; the last four are those of the backward operators.
struct TrainingTensors {
  TensorView q;  // [total_q, h_q, d_qk]
  TensorView k;  // [total_k, h_kv, d_qk]
  TensorView v;  // [total_k, h_kv, d_v]
  TensorView sink_bias;
  TensorView d_out;  // [total_q, h_q, d_v]
  TensorView out;
  TensorView lse;  // [total_q, h_q]
  float scale = 1.0f;

  int64_t d_qk() const { return q.size(2); }
  int64_t d_v() const { return v.size(2); }
  double sink(int64_t head) const { return sink_bias ? float_at(sink_bias, head) : -kInfinity; }
  float lse_at(int64_t token, int64_t head) const {
    return lse.data_as<float>()[token * lse.stride(0) + head * lse.stride(1)];
  }
};

// A value that multiplies a row of a tensor, as a kernel of that type has it.
template <class Real>
Real as_factor(Real x, DType type) {
  if constexpr (std::is_same_v<Real, double>) {
    return x;
  } else {
    return type == DType::kFP16 ? f16_bits_to_f32(f32_to_f16_bits(x)) : bf16_bits_to_f32(f32_to_bf16_bits(x));
  }
}

// The row (token, head) of a view of three dimensions.
template <class Real>
void read_row(const TensorView& view, int64_t token, int64_t head, Real* row) {
  thread_local std::vector<float> floats;
  const int64_t width = view.size(2);
  floats.resize(static_cast<size_t>(width));
  read_floats(view, token * view.stride(0) + head * view.stride(1), width, floats.data());
  std::copy(floats.begin(), floats.end(), row);
}

// Eight sums side by side, as the compiler does not reorder sums.
template <class Real>
Real dot(const Real* a, const Real* b, int64_t n) {
  Real lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  Real sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const Real lane : lanes) sum += lane;
  return sum;
}

template <class Real>
void add_scaled(Real factor, const Real* row, int64_t n, Real* sums) {
  for (int64_t i = 0; i < n; ++i) sums[i] += factor * row[i];
}

template <class Real>
Real norm(const Real* row, int64_t n) {
  return std::sqrt(dot(row, row, n));
}

// One key's row of K and of V, and which key it is.
template <class Real>
struct KeyRow {
  std::vector<Real> k;
  std::vector<Real> v;

  void load(const TrainingTensors& t, int64_t row, int64_t kv_head) {
    k.resize(static_cast<size_t>(t.d_qk()));
    v.resize(static_cast<size_t>(t.d_v()));
    read_row(t.k, row, kv_head, k.data());
    read_row(t.v, row, kv_head, v.data());
  }
};

// Forward ---------------------------------------------------------------------------------------------

template <class Real>
struct ForwardRow {
  std::vector<Real> q;
  std::vector<Real> scores;   // of the keys that it sees, in the tile's order
  std::vector<Real> out;      // not divided by sum.sum
  std::vector<Real> squares;  // see HeadGroup::deviations
  LogSum<Real> sum;           // of the keys alone
  Real lse = 0;               // with the sink
  Real factor = 0;            // for `out`, of ordinary rows
};

template <class Real>
class ForwardTile {
 public:
  std::vector<ForwardRow<Real>> rows;

  void run(const TrainingTensors& t, const RowTile& tile, bool with_deviations) {
    start(t, tile);
    for_seen(t, tile, [&](ForwardRow<Real>& row, size_t) {
      row.scores.push_back(dot(row.q.data(), key_.k.data(), t.d_qk()) * static_cast<Real>(t.scale));
    });
    for (size_t r = 0; r < rows.size(); ++r) {
      ForwardRow<Real>& row = rows[r];
      row.sum = log_sum(row.scores.data(), static_cast<int64_t>(row.scores.size()));
      const Real lse = row.sum.lse();
      row.lse = lse;
      if (t.sink_bias && row.sum.kind == RowKind::kOrdinary) {
        row.lse = log_add<Real>(lse, static_cast<Real>(t.sink(tile.rows[r].head)));
      }
      row.factor = std::exp(lse - row.lse) / row.sum.sum;
      for (Real& x : row.scores) x = as_factor(std::exp(x - row.sum.max), t.q.dtype());
    }
    for_seen(t, tile, [&](ForwardRow<Real>& row, size_t i) {
      add_scaled(row.scores[i], key_.v.data(), t.d_v(), row.out.data());
    });
    if (!with_deviations) return;
    for_seen(t, tile, [&](ForwardRow<Real>& row, size_t i) {
      for (size_t c = 0; c < row.out.size(); ++c) {
        const Real moved = row.scores[i] * (key_.v[c] - row.out[c] * row.factor);
        row.squares[c] += moved * moved;
      }
    });
  }

 private:
  void start(const TrainingTensors& t, const RowTile& tile) {
    rows.resize(tile.rows.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      rows[r].q.resize(static_cast<size_t>(t.d_qk()));
      read_row(t.q, tile.rows[r].token, tile.rows[r].head, rows[r].q.data());
      rows[r].scores.clear();
      rows[r].out.assign(static_cast<size_t>(t.d_v()), 0);
      rows[r].squares.assign(static_cast<size_t>(t.d_v()), 0);
    }
    seen_.resize(rows.size());
  }

  // Calls use(row, i) for every pair; the key, loaded into key_, is the i-th that the row sees.
  template <class Use>
  void for_seen(const TrainingTensors& t, const RowTile& tile, const Use& use) {
    std::fill(seen_.begin(), seen_.end(), 0);
    for (size_t k = 0; k < tile.keys.size(); ++k) {
      key_.load(t, tile.keys[k].row, tile.kv_head);
      for (size_t r = 0; r < rows.size(); ++r) {
        if (tile.sees_key(r, k)) use(rows[r], seen_[r]++);
      }
    }
  }

  KeyRow<Real> key_;
  std::vector<size_t> seen_;  // keys that a row has gone through
};

// Backward --------------------------------------------------------------------------------------------

// The gradient of one row of a tensor; empty while no pair has a part in it. `noise` and `draw` are sums of
// squares of what gradient_bound.h calls so.
template <class Real>
struct RowGradient {
  std::vector<Real> sums;
  double noise = 0;
  double draw = 0;

  bool reached() const { return !sums.empty(); }
  void add(Real factor, const std::vector<Real>& row) {
    if (sums.empty()) sums.assign(row.size(), 0);
    add_scaled(factor, row.data(), static_cast<int64_t>(row.size()), sums.data());
  }
  // The effect of an error of its factor that `unit` (the row's length) multiplies.
  void add_errors(double noise_of_factor, double draw_of_factor, double unit) {
    noise += noise_of_factor * noise_of_factor * unit * unit;
    draw += draw_of_factor * draw_of_factor * unit * unit;
  }
  void add(const RowGradient& other) {
    if (other.reached()) add(1, other.sums);
    noise += other.noise;
    draw += other.draw;
  }
};

// Sums of one slice of the tiles. Rows of K and V are [total_k, h_kv].
template <class Real>
struct GradientSums {
  std::vector<RowGradient<Real>> dk;
  std::vector<RowGradient<Real>> dv;
  std::vector<RowGradient<Real>> sink;  // [h_q]
};

template <class Real>
class BackwardTile {
 public:
  struct Row {
    std::vector<Real> q;
    std::vector<Real> d_out;
    Real lse = 0;
    Real delta = 0;
    double length_q = 0;
    double length_d_out = 0;
    double length_out = 0;
    RowGradient<Real> dq;    // before the scale
    Real value = 0;          // sum of P * dP
    double value_size = 0;   // of |P * dP|
    double value_noise = 0;  // a sum of squares
  };
  std::vector<Row> rows;

  // add_p(token, place, p, noise) takes note of a pair's probability.
  template <class AddP>
  void run(const TrainingTensors& t, const RowTile& tile, GradientSums<Real>& sums, const AddP& add_p) {
    start(t, tile);
    for (size_t k = 0; k < tile.keys.size(); ++k) {
      key_.load(t, tile.keys[k].row, tile.kv_head);
      if (kWithErrors) {
        length_k_ = static_cast<double>(norm(key_.k.data(), t.d_qk()));
        length_v_ = static_cast<double>(norm(key_.v.data(), t.d_v()));
      }
      const size_t kv_row = static_cast<size_t>(tile.keys[k].row * t.k.size(1) + tile.kv_head);
      for (size_t r = 0; r < rows.size(); ++r) {
        // exp(score - lse) is 0 whatever the score.
        if (!tile.sees_key(r, k) || rows[r].lse == static_cast<Real>(kInfinity)) continue;
        const bool kept = tile.keys[k].kept;
        add_pair(t, rows[r], kept ? sums.dk[kv_row] : not_kept_[0], kept ? sums.dv[kv_row] : not_kept_[1]);
        add_p(tile.rows[r].token, tile.keys[k].place, p_, p_noise_);
      }
    }
  }

  static constexpr double kSumRounding = 0x1p-22;

 private:
  static constexpr bool kWithErrors = std::is_same_v<Real, double>;

  void start(const TrainingTensors& t, const RowTile& tile) {
    rows.resize(tile.rows.size());
    std::vector<Real> out(static_cast<size_t>(t.d_v()));
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto [token, head, kept] = tile.rows[r];
      Row& row = rows[r];
      row.q.resize(static_cast<size_t>(t.d_qk()));
      row.d_out.resize(static_cast<size_t>(t.d_v()));
      read_row(t.q, token, head, row.q.data());
      read_row(t.d_out, token, head, row.d_out.data());
      read_row(t.out, token, head, out.data());
      row.lse = t.lse_at(token, head);
      row.delta = dot(row.d_out.data(), out.data(), t.d_v());
      row.dq = {};
      row.value = 0;
      row.value_size = row.value_noise = 0;
      if (kWithErrors) {
        row.length_q = static_cast<double>(norm(row.q.data(), t.d_qk()));
        row.length_d_out = static_cast<double>(norm(row.d_out.data(), t.d_v()));
        row.length_out = static_cast<double>(norm(out.data(), t.d_v()));
      }
    }
  }

  void add_pair(const TrainingTensors& t, Row& row, RowGradient<Real>& dk, RowGradient<Real>& dv) {
    const Real score = dot(row.q.data(), key_.k.data(), t.d_qk()) * static_cast<Real>(t.scale);
    const Real dp = dot(row.d_out.data(), key_.v.data(), t.d_v());
    p_ = std::exp(score - row.lse);
    row.value += p_ * dp;
    const Real ds = p_ * (dp - row.delta);
    const Real ds_factor = as_factor(ds, t.q.dtype());
    row.dq.add(ds_factor, key_.k);
    dk.add(ds_factor, row.q);
    dv.add(as_factor(p_, t.q.dtype()), row.d_out);
    if (kWithErrors) add_errors(t, row, static_cast<double>(dp), dk, dv);
  }

  // Errors of P (fp32 scores, exp) and of dP - delta (fp32 sums), each as large as a few roundings of the
  // lengths' products, and the rounding of the factors P and dS.
  void add_errors(const TrainingTensors& t, Row& row, double dp, RowGradient<Real>& dk,
                  RowGradient<Real>& dv) {
    const double difference = dp - static_cast<double>(row.delta);
    const double rounding = t.q.dtype() == DType::kFP16 ? 0x1p-12 : 0x1p-9;
    const double p = static_cast<double>(p_);
    const double score = std::fabs(t.scale) * row.length_q * length_k_;
    p_noise_ = kSumRounding * p * (1 + score + std::fabs(static_cast<double>(row.lse)));
    const double ds_noise =
        p_noise_ * std::fabs(difference) + kSumRounding * p * row.length_d_out * (length_v_ + row.length_out);
    const double ds_draw = rounding * p * std::fabs(difference);
    row.dq.add_errors(ds_noise, ds_draw, length_k_);
    dk.add_errors(ds_noise, ds_draw, row.length_q);
    dv.add_errors(p_noise_, rounding * p, row.length_d_out);
    const double value_noise = p_noise_ * std::fabs(dp) + kSumRounding * p * row.length_d_out * length_v_;
    row.value_noise += value_noise * value_noise;
    row.value_size += p * std::fabs(dp);
  }

  KeyRow<Real> key_;
  RowGradient<Real> not_kept_[2];  // of K and V, for keys whose gradients come from elsewhere
  double length_k_ = 0;
  double length_v_ = 0;
  Real p_ = 0;          // of the pair added last
  double p_noise_ = 0;  // of the same
};

}  // namespace tilewise::reference
