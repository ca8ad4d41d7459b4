// The oracle's attention of some heads of one query token to a list of keys: scores, softmax, sinks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace tilewise::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The keys that a query token sees, duplicates as often as they are listed.
struct KeyRows {
  std::vector<float> rows;  // [count, d_qk]
  int64_t count = 0;
  int64_t leading = 0;  // how many of them come from the list's entries that lse_indexer covers
};

// What the scores of a row amount to.
enum class RowKind {
  kLonely,     // no key, or none with a score above -inf
  kOrdinary,   // the largest score is finite
  kInfinite,   // a score of +inf
  kUndefined,  // a score that is NaN
};

template <class Real>
struct LogSum {
  RowKind kind = RowKind::kLonely;
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = 0;  // of exp(score - max); ordinary rows alone

  Real lse() const {
    if (kind == RowKind::kLonely) return std::numeric_limits<Real>::infinity();
    return kind == RowKind::kOrdinary ? max + std::log(sum) : std::numeric_limits<Real>::quiet_NaN();
  }
};

template <class Real>
LogSum<Real> log_sum(const Real* scores, int64_t count) {
  LogSum<Real> row;
  bool nan = false;
  for (int64_t k = 0; k < count; ++k) {
    nan = nan || std::isnan(scores[k]);
    row.max = std::max(row.max, scores[k]);
  }
  if (nan) {
    row.kind = RowKind::kUndefined;
    row.max = std::numeric_limits<Real>::quiet_NaN();
  } else if (std::isinf(row.max)) {
    row.kind = row.max > 0 ? RowKind::kInfinite : RowKind::kLonely;
  } else {
    row.kind = RowKind::kOrdinary;
    for (int64_t k = 0; k < count; ++k) row.sum += std::exp(scores[k] - row.max);
  }
  return row;
}

// log(exp(finite) + exp(any)); `any` may be either infinity.
template <class Real>
Real log_add(Real finite, Real any) {
  const Real larger = std::max(finite, any);
  return larger + std::log1p(std::exp(std::min(finite, any) - larger));
}

// What an ordinary row's output is multiplied by for a sink that takes no part in lse.
template <class Real>
Real sink_factor(Real lse, Real sink) {
  return 1 / (1 + std::exp(sink - lse));
}

// Scores and weighted sums of a few heads against all keys, in blocks of keys that stay in a cache.
template <class Policy>
class HeadGroup {
 public:
  using Real = typename Policy::Real;
  static constexpr int64_t kBlock = 16;

  // q [heads, d_qk] and scale [heads] are to be filled by the caller.
  void resize(int64_t heads, int64_t d_qk, int64_t d_v) {
    heads_ = heads;
    d_qk_ = d_qk;
    d_v_ = d_v;
    q.resize(static_cast<size_t>(heads * d_qk));
    scale.resize(static_cast<size_t>(heads));
    out_.assign(static_cast<size_t>(heads * d_v), 0);
    block_.resize(static_cast<size_t>(kBlock * d_qk));
  }

  std::vector<Real> q;
  std::vector<Real> scale;  // of the scores

  // Fills scores [heads, keys].
  void score(const KeyRows& keys) {
    scores_.resize(static_cast<size_t>(heads_ * keys.count));
    for (int64_t k0 = 0; k0 < keys.count; k0 += kBlock) {
      const int64_t width = std::min(kBlock, keys.count - k0);
      for (int64_t k = 0; k < kBlock; ++k) {
        for (int64_t c = 0; c < d_qk_; ++c) {
          block_[static_cast<size_t>(c * kBlock + k)] = k < width ? keys.rows[at(k0 + k, d_qk_, c)] : 0;
        }
      }
      for (int64_t h = 0; h < heads_; ++h) {
        Real dots[kBlock] = {};
        multiply(&q[at(h, d_qk_, 0)], dots);
        for (int64_t k = 0; k < width; ++k) {
          scores_[at(h, keys.count, k0 + k)] = dots[k] * scale[static_cast<size_t>(h)];
        }
      }
    }
  }

  // The log-sum-exp of a head's first `count` scores.
  LogSum<Real> sum(const KeyRows& keys, int64_t head, int64_t count) const {
    return log_sum(scores_.data() + head * keys.count, count);
  }

  // Turns the scores of a head with an ordinary row into the weights of its values.
  void weigh(const KeyRows& keys, int64_t head, Real max) {
    Real* scores = scores_.data() + head * keys.count;
    for (int64_t k = 0; k < keys.count; ++k) scores[k] = Policy::weight(std::exp(scores[k] - max));
  }

  // Sums weights times values of all heads; V is the first d_v columns of K.
  void sum_values(const KeyRows& keys) {
    for (int64_t k0 = 0; k0 < keys.count; k0 += kBlock) {
      const int64_t width = std::min(kBlock, keys.count - k0);
      for (int64_t k = 0; k < width; ++k) {
        const float* row = &keys.rows[at(k0 + k, d_qk_, 0)];
        std::copy(row, row + d_v_, block_.begin() + k * d_v_);
      }
      for (int64_t h = 0; h < heads_; ++h) accumulate(&scores_[at(h, keys.count, k0)], width, out(h));
    }
  }

  Real* out(int64_t head) { return out_.data() + head * d_v_; }

  // How far relative errors of the weights, independent and of standard deviation 1, move the sums of each
  // head with an ordinary row: the largest, over the columns, of sqrt(sum_k (weight_k (value_k - mean))^2).
  // `shares`: what the keys have of each row's whole weight; a sink, whose value is 0, has the rest, so that
  // the mean is that share of the keys' own. In fp32, whose range is enough for all but values that nobody
  // uses: 0 where the squares leave it. Comes after sum_values.
  std::vector<Real> deviations(const KeyRows& keys, const std::vector<LogSum<Real>>& rows,
                               const std::vector<Real>& shares) {
    means_.resize(out_.size());
    squares_.assign(out_.size(), 0);
    for (int64_t h = 0; h < heads_; ++h) {
      const Real factor = shares[static_cast<size_t>(h)] / rows[static_cast<size_t>(h)].sum;
      for (int64_t c = 0; c < d_v_; ++c) means_[at(h, d_v_, c)] = static_cast<float>(out(h)[c] * factor);
    }
    for (int64_t k0 = 0; k0 < keys.count; k0 += kBlock) {
      const int64_t width = std::min(kBlock, keys.count - k0);
      for (int64_t h = 0; h < heads_; ++h) {
        if (rows[static_cast<size_t>(h)].kind != RowKind::kOrdinary) continue;
        for (int64_t k = 0; k < width; k += 4) deviate(keys, h, k0 + k, std::min<int64_t>(4, width - k));
      }
    }
    std::vector<Real> found(static_cast<size_t>(heads_));
    for (int64_t h = 0; h < heads_; ++h) {
      const auto first = squares_.begin() + h * d_v_;
      const float largest = *std::max_element(first, first + d_v_);
      if (std::isfinite(largest)) found[static_cast<size_t>(h)] = std::sqrt(static_cast<Real>(largest));
    }
    return found;
  }

 private:
  static size_t at(int64_t row, int64_t width, int64_t column) {
    return static_cast<size_t>(row * width + column);
  }

  // Dot products with the keys of the block, each a plain sum over the columns.
  void multiply(const Real* query, Real* dots) const {
    const Real* block = block_.data();
    for (int64_t c = 0; c < d_qk_; ++c) {
      for (int64_t k = 0; k < kBlock; ++k) dots[k] += query[c] * block[c * kBlock + k];
    }
  }

  void accumulate(const Real* weights, int64_t width, Real* sums) const {
    int64_t k = 0;
    for (; k + 4 <= width; k += 4) {
      const Real* v = block_.data() + k * d_v_;
      const Real* v1 = v + d_v_;
      const Real* v2 = v1 + d_v_;
      const Real* v3 = v2 + d_v_;
      for (int64_t c = 0; c < d_v_; ++c) {
        sums[c] = sums[c] + weights[k] * v[c] + weights[k + 1] * v1[c] + weights[k + 2] * v2[c] +
                  weights[k + 3] * v3[c];
      }
    }
    for (; k < width; ++k) {
      const Real* v = block_.data() + k * d_v_;
      for (int64_t c = 0; c < d_v_; ++c) sums[c] += weights[k] * v[c];
    }
  }

  // Up to four keys from `first` on.
  void deviate(const KeyRows& keys, int64_t head, int64_t first, int64_t count) {
    // What is smaller than that does not show in any output type; its squares would be slow subnormal
    // numbers.
    constexpr Real kSmallest = 0x1p-30f;
    float w[4] = {};
    const float* v[4];
    for (int64_t k = 0; k < 4; ++k) {
      v[k] = &keys.rows[at(first + std::min(k, count - 1), d_qk_, 0)];
      if (k >= count) continue;
      const Real weight = scores_[at(head, keys.count, first + k)];
      if (weight >= kSmallest) w[k] = static_cast<float>(weight);
    }
    if (w[0] + w[1] + w[2] + w[3] == 0) return;
    const float* mean = &means_[at(head, d_v_, 0)];
    float* squares = &squares_[at(head, d_v_, 0)];
    for (int64_t c = 0; c < d_v_; ++c) {
      const float d0 = w[0] * (v[0][c] - mean[c]);
      const float d1 = w[1] * (v[1][c] - mean[c]);
      const float d2 = w[2] * (v[2][c] - mean[c]);
      const float d3 = w[3] * (v[3][c] - mean[c]);
      squares[c] += d0 * d0 + d1 * d1 + d2 * d2 + d3 * d3;
    }
  }

  int64_t heads_ = 0;
  int64_t d_qk_ = 0;
  int64_t d_v_ = 0;
  std::vector<Real> block_;     // keys transposed [d_qk, kBlock], or values [kBlock, d_v]
  std::vector<Real> scores_;    // [heads, keys]: scores, then weights
  std::vector<Real> out_;       // [heads, d_v]
  std::vector<float> means_;    // [heads, d_v]
  std::vector<float> squares_;  // [heads, d_v]
};

}  // namespace tilewise::reference
