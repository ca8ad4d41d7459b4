// Small owned tensors and a softmax of a few lines, for tests of the oracle.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <random>
#include <vector>

#include "core/numeric.h"
#include "tilewise/tensor.h"

namespace tilewise::oracle_self {

inline constexpr double kInf = HUGE_VAL;
inline const float kLn2 = std::log(2.0f);

inline uint16_t bf16(float x) { return f32_to_bf16_bits(x); }

/// A row-major tensor that owns its elements (bit patterns where T is no float).
template <class T, DType kType>
struct Owned {
  std::vector<int64_t> shape;
  std::vector<T> values;

  Owned() = default;
  Owned(std::initializer_list<int64_t> dims, T fill = T{}) : shape(dims) {
    values.assign(
        static_cast<size_t>(std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>())),
        fill);
  }

  size_t offset(std::initializer_list<int64_t> index) const {
    int64_t at = 0;
    size_t dim = 0;
    for (int64_t i : index) at = at * shape[dim++] + i;
    for (; dim < shape.size(); ++dim) at *= shape[dim];
    return static_cast<size_t>(at);
  }
  T& at(std::initializer_list<int64_t> index) { return values[offset(index)]; }

  TensorView view() const {
    std::vector<int64_t> strides(shape.size());
    int64_t stride = 1;
    for (size_t dim = shape.size(); dim-- > 0;) {
      strides[dim] = stride;
      stride *= shape[dim];
    }
    return TensorView(values.data(), kType, shape, strides);
  }
};

using Bf16 = Owned<uint16_t, DType::kBF16>;
using Fp16 = Owned<uint16_t, DType::kFP16>;
using Fp8 = Owned<uint8_t, DType::kE4M3>;
using Bytes = Owned<uint8_t, DType::kUInt8>;
using Floats = Owned<float, DType::kFP32>;
using Ints = Owned<int32_t, DType::kInt32>;
using Longs = Owned<int64_t, DType::kInt64>;

inline Ints ints(std::initializer_list<int64_t> shape, std::vector<int32_t> values) {
  Ints tensor(shape);
  tensor.values = std::move(values);
  return tensor;
}

inline Floats floats(std::vector<float> values) {
  Floats tensor({static_cast<int64_t>(values.size())});
  tensor.values = std::move(values);
  return tensor;
}

inline void fill_random(Bf16& tensor, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (uint16_t& x : tensor.values) x = bf16(scale * normal(generator));
}

inline std::vector<double> values_of(const Bf16& tensor, std::initializer_list<int64_t> index,
                                     int64_t count) {
  std::vector<double> row;
  const size_t first = tensor.offset(index);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    row.push_back(bf16_bits_to_f32(tensor.values[first + i]));
  return row;
}

struct PlainRow {
  std::vector<double> out;
  double lse;
  double max;
};

/// The textbook formula, without any care for range: q [d], keys [n][>= d], the first d_v columns are values.
inline PlainRow plain_softmax(const std::vector<double>& q, const std::vector<std::vector<double>>& keys,
                              double scale, size_t d_v) {
  PlainRow row{std::vector<double>(d_v), 0, -kInf};
  double sum = 0;
  for (const std::vector<double>& key : keys) {
    const double score = scale * std::inner_product(q.begin(), q.end(), key.begin(), 0.0);
    row.max = std::max(row.max, score);
    sum += std::exp(score);
    for (size_t c = 0; c < d_v; ++c) row.out[c] += std::exp(score) * key[c];
  }
  for (double& x : row.out) x /= sum;
  row.lse = std::log(sum);
  return row;
}

}  // namespace tilewise::oracle_self
