// A small call of the training operators in fp32, whose argument structs are filled from one set of options.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "reference/training.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {

inline void fill_random(Floats& tensor, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (float& x : tensor.values) x = normal(generator);
}

/// One sequence of `len_q` queries and `len_k` keys, as long as nothing else is said.
struct TrainingCall {
  Floats q, k, v, sink_bias, d_out;
  Ints cu_seqlens_q, cu_seqlens_k;
  Ints q2k;  // used by block-sparse calls alone
  int64_t max_seqlen_q = 1000;
  int64_t max_seqlen_k = 1000;
  int64_t q_block = 2;
  int64_t kv_block = 3;
  float scale = 0.6f;
  bool causal = false;
  Window window;
  // Of the forward operator, for the backward one.
  Floats out, lse;

  TrainingCall(int32_t len_q, int32_t len_k, int64_t h_q, int64_t h_kv, int64_t d_qk, int64_t d_v)
      : q({len_q, h_q, d_qk}),
        k({len_k, h_kv, d_qk}),
        v({len_k, h_kv, d_v}),
        d_out({len_q, h_q, d_v}),
        cu_seqlens_q(ints({2}, {0, len_q})),
        cu_seqlens_k(ints({2}, {0, len_k})) {}

  void randomise() {
    fill_random(q, 1);
    fill_random(k, 2);
    fill_random(v, 3);
    fill_random(d_out, 4);
  }

  template <class Args>
  Args common() const {
    Args args;
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.cu_seqlens_q = cu_seqlens_q.view();
    args.cu_seqlens_k = cu_seqlens_k.view();
    args.max_seqlen_q = max_seqlen_q;
    args.max_seqlen_k = max_seqlen_k;
    args.softmax_scale = scale;
    args.causal = causal;
    args.window = window;
    if (!sink_bias.values.empty()) args.sink_bias = sink_bias.view();
    return args;
  }

  template <class Args>
  Args with_selection(Args args) const {
    if (!q2k.shape.empty()) args.q2k = q2k.view();
    args.q_block = q_block;
    args.kv_block = kv_block;
    return args;
  }

  template <class Args>
  Args with_outputs(Args args) const {
    args.d_out = d_out.view();
    args.out = out.view();
    args.lse = lse.view();
    return args;
  }

  reference::TrainingResult forward(bool block_sparse) const {
    const auto kind = reference::Arithmetic::kDouble;
    if (!block_sparse) return training_forward(common<DensePrefillFwdArgs>(), kind);
    return training_forward(with_selection(common<BlockSparsePrefillFwdArgs>()), kind);
  }

  // Keeps what the forward operator gives; rows that it does not write stay NaN.
  void keep_outputs(bool block_sparse) {
    const reference::TrainingResult result = forward(block_sparse);
    out = Floats({q.shape[0], q.shape[1], v.shape[2]});
    lse = Floats({q.shape[0], q.shape[1]});
    std::transform(result.out.begin(), result.out.end(), out.values.begin(),
                   [](double x) { return static_cast<float>(x); });
    std::transform(result.lse.begin(), result.lse.end(), lse.values.begin(),
                   [](double x) { return static_cast<float>(x); });
  }

  reference::Gradients backward(bool block_sparse,
                                reference::Arithmetic kind = reference::Arithmetic::kDouble) const {
    if (!block_sparse) return training_backward(with_outputs(common<DensePrefillBwdArgs>()), kind);
    return training_backward(with_outputs(with_selection(common<BlockSparsePrefillBwdArgs>())), kind);
  }
};

/// The sum of d_out times out over the rows that are written.
inline double loss_of(const std::vector<double>& out, const std::vector<float>& d_out) {
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    if (!std::isnan(out[i])) sum += out[i] * static_cast<double>(d_out[i]);
  }
  return sum;
}

/// d loss / d tensor by central differences; `loss` reads the tensor.
template <class Loss>
std::vector<double> central_differences(Floats& tensor, const Loss& loss) {
  constexpr float kStep = 0x1p-11f;
  std::vector<double> slopes;
  for (float& x : tensor.values) {
    const float kept = x;
    const float above = kept + kStep;
    const float below = kept - kStep;
    x = above;
    const double at_above = loss();
    x = below;
    const double at_below = loss();
    x = kept;
    slopes.push_back((at_above - at_below) / (static_cast<double>(above) - static_cast<double>(below)));
  }
  return slopes;
}

}  // namespace tilewise::oracle_self
