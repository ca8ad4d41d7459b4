// A call of sparse_prefill_bwd with random data, its forward results and its gradients by the oracle.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cases/memory.h"
#include "cases/random.h"
#include "core/float_value.h"
#include "reference/training.h"
#include "reference/views.h"
#include "tests/support/kernels.h"
#include "tilewise/plan.h"

namespace tilewise::testing {

struct SparseBackwardOptions {
  int64_t s_q = 5;
  int64_t h_q = 4;
  int64_t s_kv = 700;
  int64_t topk = 64;
  int64_t d = 576;
  int64_t rows_in_use = 0;  // lists select among the first rows alone; 0: all
  bool holes = false;
  bool lengths = false;
  bool sink = false;
  DType sink_type = DType::kFP32;
  bool kl_target = true;
  bool strided = false;
  float scale = 0.06f;
  float logit = 0;  // about what all scores are
};

inline std::string to_string(const SparseBackwardOptions& o) {
  return "s_q " + std::to_string(o.s_q) + ", h_q " + std::to_string(o.h_q) + ", topk " +
         std::to_string(o.topk) + ", d " + std::to_string(o.d) + (o.holes ? ", holes" : "") +
         (o.lengths ? ", lengths" : "") + (o.sink ? ", sink" : "") + (o.strided ? ", strided" : "");
}

class SparseBackwardCall {
 public:
  using Bits = std::vector<std::vector<uint8_t>>;

  SparsePrefillBwdArgs args;
  PlanOptions options;

  explicit SparseBackwardCall(const SparseBackwardOptions& o) : o_(o) {
    tensors_.reserve(16);
    args.softmax_scale = o.scale;
    args.q = input("q", DType::kBF16, {o.s_q, o.h_q, o.d});
    args.kv = input("kv", DType::kBF16, {o.s_kv, 1, o.d});
    args.d_out = input("d_out", DType::kBF16, {o.s_q, o.h_q, 512});
    if (o.logit != 0) set_logit();
    args.indices = add("indices", DType::kInt32, {o.s_q, 1, o.topk});
    fill_lists();
    if (o.lengths) {
      args.topk_length = add("topk_length", DType::kInt32, {o.s_q});
      for (int64_t i = 0; i < o.s_q; ++i) {
        const int64_t lengths[] = {o.topk + 7, o.topk / 2, 1, 0, -3};
        args.topk_length.data_as<int32_t>()[i] = static_cast<int32_t>(lengths[i % 5]);
      }
    }
    if (o.sink) {
      args.sink_bias = add("sink_bias", o.sink_type, {o.h_q});
      for (int64_t h = 0; h < o.h_q; ++h) set_sink(h, random_.child("sink").normal(static_cast<uint64_t>(h)));
    }
    args.out = add("out", DType::kBF16, {o.s_q, o.h_q, 512});
    args.lse = add("lse", DType::kFP32, {o.s_q, o.h_q});
    args.dq = output("dq", DType::kBF16, {o.s_q, o.h_q, o.d});
    args.dkv = output("dkv", DType::kBF16, {o.s_kv, 1, o.d});
    if (o.sink) args.d_sink = output("d_sink", o.sink_type, {o.h_q});
    if (o.kl_target) args.kl_target = output("kl_target", DType::kFP32, {o.s_q, o.topk});
    run_forward();
  }

  SparseBackwardCall(const SparseBackwardCall&) = delete;
  SparseBackwardCall& operator=(const SparseBackwardCall&) = delete;

  void set_sink(int64_t head, float value) {
    set_float_value(args.sink_bias.data(), o_.sink_type, head, value);
  }

  /// The entries of a token's list.
  int32_t* list(int64_t token) const {
    return args.indices.data_as<int32_t>() + token * args.indices.stride(0);
  }
  /// A row of kv.
  uint16_t* key(int64_t row) const { return args.kv.data_as<uint16_t>() + row * args.kv.stride(0); }

  /// out and lse as the forward operator gives them.
  void run_forward() {
    SparsePrefillFwdArgs forward;
    forward.q = args.q;
    forward.kv = args.kv;
    forward.indices = args.indices;
    forward.topk_length = args.topk_length;
    forward.sink_bias = args.sink_bias;
    forward.softmax_scale = args.softmax_scale;
    const reference::AttentionResult result = reference::attention(forward, reference::Arithmetic::kDouble);
    for (int64_t t = 0; t < o_.s_q; ++t) {
      for (int64_t h = 0; h < o_.h_q; ++h) {
        const int64_t row = result.row(0, t, h);
        for (int64_t c = 0; c < 512; ++c) {
          set_float_value(args.out.data(), DType::kBF16, offset(args.out, t, h) + c,
                          static_cast<float>(result.out[static_cast<size_t>(row * 512 + c)]));
        }
        args.lse.data_as<float>()[offset(args.lse, t, h)] =
            static_cast<float>(result.lse[static_cast<size_t>(row)]);
      }
    }
  }

  /// One call into outputs full of NaN, with a workspace full of it.
  void run(const std::string& kernel, int threads) {
    for (cases::Operand& o : tensors_) {
      if (o.role != cases::Role::kOutput) continue;
      cases::fill_with_canaries(o);
      o.memory.whole([&](const uint8_t* p) { o.initial.assign(p, p + o.memory.whole_bytes()); });
      cases::for_each_run(o.view, [](uint8_t* run, int64_t n) { std::fill_n(run, n, uint8_t{0xFF}); });
    }
    options.kernel = kernel;
    options.threads = threads;
    const Plan made = plan(args, Device::cpu(), options);
    EXPECT_EQ(made.kernel(), kernel);
    cases::Buffer memory(static_cast<int64_t>(made.workspace_bytes()), 0);
    std::fill_n(memory.data(), memory.bytes(), uint8_t{0xFF});
    tilewise::run(made, args, Workspace{memory.data(), made.workspace_bytes()});
    for (const cases::Operand& o : tensors_) {
      if (o.role == cases::Role::kOutput) {
        EXPECT_TRUE(cases::surroundings_hold(o)) << o.name;
      }
    }
  }

  Bits output_bits() const {
    Bits bits;
    for (const cases::Operand& o : tensors_) {
      if (o.role == cases::Role::kOutput) bits.push_back(cases::contents(o.view));
    }
    return bits;
  }

  reference::Gradients gradients(reference::Arithmetic arithmetic) const {
    return training_backward(args, arithmetic);
  }

  /// What the outputs hold, against the oracle.
  void expect_gradients(const reference::Gradients& oracle, const reference::Gradients& rounded) const {
    expect_gradient("dq", args.dq, oracle.dq, rounded.dq, reference::kTokenSparseCosine);
    expect_gradient("dkv", args.dkv, oracle.dkv, rounded.dkv, reference::kTokenSparseCosine);
    if (args.d_sink)
      expect_gradient("d_sink", args.d_sink, oracle.d_sink, rounded.d_sink, reference::kCosine);
    if (args.kl_target) {
      expect_gradient("kl_target", args.kl_target, oracle.kl_target, rounded.kl_target, reference::kCosine);
    }
  }

 private:
  static int64_t offset(const TensorView& view, int64_t token, int64_t head) {
    return token * view.stride(0) + head * view.stride(1);
  }

  static void expect_gradient(const char* name, const TensorView& view,
                              const reference::GradientTensor& oracle,
                              const reference::GradientTensor& rounded, double cosine) {
    const reference::Comparison found = reference::compare_gradient(
        reference::to_floats(view), oracle, rounded, reference::output_type(view.dtype()), cosine);
    EXPECT_TRUE(found.ok) << name << ": " << found.worst_ratio << " times the bound; " << found.where;
  }

  /// Strided: gaps of 32 bytes after every row of the last dimension.
  TensorView add(const char* name, DType type, std::vector<int64_t> shape,
                 cases::Role role = cases::Role::kInput) {
    const int64_t element = size_of(type);
    std::vector<int64_t> strides(shape.size(), 1);
    int64_t stride = shape.back() + (o_.strided && shape.size() > 1 ? 32 / element : 0);
    for (size_t i = shape.size() - 1; i-- > 0;) {
      strides[i] = stride;
      stride *= shape[i];
    }
    cases::Operand& o = tensors_.emplace_back();
    o.name = name;
    o.role = role;
    o.memory = cases::Buffer(std::max<int64_t>(stride, 1) * element, 0);
    o.view = TensorView(o.memory.data(), type, shape, strides);
    std::fill_n(o.memory.data(), o.memory.bytes(), uint8_t{0xFF});
    return o.view;
  }
  TensorView output(const char* name, DType type, std::vector<int64_t> shape) {
    return add(name, type, std::move(shape), cases::Role::kOutput);
  }
  TensorView input(const char* name, DType type, std::vector<int64_t> shape) {
    const TensorView view = add(name, type, std::move(shape));
    const cases::Stream64 random = random_.child(name);
    uint64_t i = 0;
    cases::for_each_run(view, [&](uint8_t* run, int64_t n) {
      for (int64_t at = 0; at < n; at += 2) {
        const uint16_t bits = f32_to_bf16_bits(random.normal(i++));
        std::memcpy(run + at, &bits, sizeof(bits));
      }
    });
    return view;
  }

  /// The last column of K, which is no value where d is 576, is 1 and that of q the logit.
  void set_logit() {
    for (int64_t row = 0; row < o_.s_kv; ++row) key(row)[o_.d - 1] = f32_to_bf16_bits(1);
    for (int64_t t = 0; t < o_.s_q; ++t) {
      for (int64_t h = 0; h < o_.h_q; ++h) {
        args.q.data_as<uint16_t>()[offset(args.q, t, h) + o_.d - 1] = f32_to_bf16_bits(o_.logit / o_.scale);
      }
    }
  }

  void fill_lists() {
    const cases::Stream64 random = random_.child("indices");
    const int64_t rows = o_.rows_in_use > 0 ? o_.rows_in_use : o_.s_kv;
    constexpr int32_t kInvalid[] = {-1, -2147483647 - 1, 2147483647};
    for (int64_t t = 0; t < o_.s_q; ++t) {
      for (int64_t i = 0; i < o_.topk; ++i) {
        const auto at = static_cast<uint64_t>(t * o_.topk + i);
        list(t)[i] = static_cast<int32_t>(random.below(at, rows));
        if (o_.holes && random.child("hole").below(at, 3) == 0) list(t)[i] = kInvalid[i % 3];
        if (o_.holes && i % 11 == 5) list(t)[i] = static_cast<int32_t>(o_.s_kv);
      }
    }
  }

  SparseBackwardOptions o_;
  cases::Stream64 random_{7};
  std::vector<cases::Operand> tensors_;
};

/// Calls `body(kernel)` for every kernel that takes the call, and expects every one of this machine.
template <class Body>
void for_every_kernel(const SparsePrefillBwdArgs& args, const Body& body) {
  std::vector<std::string> ran;
  for (const KernelVerdict& verdict : explain(args, Device::cpu())) {
    if (!verdict.refusal.empty()) continue;
    SCOPED_TRACE("kernel " + verdict.kernel);
    body(verdict.kernel);
    ran.push_back(verdict.kernel);
  }
  EXPECT_THAT(ran, ::testing::IsSupersetOf(kernels_of(Device::cpu(), true)));
}

}  // namespace tilewise::testing
