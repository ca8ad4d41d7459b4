// What may not change a bit of sparse_prefill_bwd's gradients, whatever the kernel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tests/support/patterns.h"
#include "tests/support/sparse_backward_call.h"

namespace tilewise {
namespace {

using testing::Fill;
using testing::SparseBackwardCall;
using testing::SparseBackwardOptions;

// Half of the rows that exist are in no list.
constexpr SparseBackwardOptions kAll = {.h_q = 20,
                                        .s_kv = 400,
                                        .topk = 133,
                                        .rows_in_use = 200,
                                        .holes = true,
                                        .lengths = true,
                                        .sink = true,
                                        .strided = true};

/// Runs the call with every kernel, changes it, and runs it again: the same bits.
template <class Change>
void expect_no_change(const SparseBackwardOptions& options, const Change& change) {
  const SparseBackwardCall first(options);
  testing::for_every_kernel(first.args, [&](const std::string& kernel) {
    SparseBackwardCall call(options);
    call.run(kernel, 2);
    const auto bits = call.output_bits();
    change(call);
    call.run(kernel, 2);
    EXPECT_TRUE(call.output_bits() == bits);
  });
}

int64_t listed(const SparseBackwardCall& call, int64_t token) {
  const int64_t topk = call.args.indices.size(2);
  if (!call.args.topk_length) return topk;
  return std::clamp<int64_t>(call.args.topk_length.data_as<int32_t>()[token], 0, topk);
}

TEST(SparseBackwardInvariants, RowsThatNoListSelects) {
  for (const Fill fill : testing::kPoisons) {
    SCOPED_TRACE(name_of(fill));
    expect_no_change(kAll, [&](SparseBackwardCall& call) {
      std::set<int64_t> selected;
      for (int64_t t = 0; t < kAll.s_q; ++t) {
        for (int64_t i = 0; i < listed(call, t); ++i) selected.insert(call.list(t)[i]);
      }
      ASSERT_GT(selected.size(), 50u);
      for (int64_t row = 0; row < kAll.s_kv; ++row) {
        if (selected.count(row) != 0) continue;
        auto* bytes = reinterpret_cast<uint8_t*>(call.key(row));
        testing::fill_bytes({bytes, static_cast<size_t>(kAll.d) * 2}, DType::kBF16, fill);
      }
    });
  }
}

TEST(SparseBackwardInvariants, EntriesPastTheLengthAndOtherInvalidOnes) {
  expect_no_change(kAll, [](SparseBackwardCall& call) {
    for (int64_t t = 0; t < kAll.s_q; ++t) {
      for (int64_t i = 0; i < kAll.topk; ++i) {
        int32_t& entry = call.list(t)[i];
        const bool invalid = entry < 0 || entry >= kAll.s_kv;
        if (i >= listed(call, t)) entry = 3;
        if (invalid && i < listed(call, t)) entry = i % 2 == 0 ? -77 : 401;
      }
    }
  });
}

TEST(SparseBackwardInvariants, AtomicsAllowed) {
  expect_no_change(kAll, [](SparseBackwardCall& call) { call.args.deterministic = false; });
}

TEST(SparseBackwardInvariants, OrderOfTheList) {
  SparseBackwardOptions options = kAll;
  options.lengths = false;
  options.kl_target = false;
  expect_no_change(options, [](SparseBackwardCall& call) {
    for (int64_t t = 0; t < kAll.s_q; ++t) std::reverse(call.list(t), call.list(t) + kAll.topk);
  });
}

TEST(SparseBackwardInvariants, GradientsDoNotDependOnKlTarget) {
  const SparseBackwardCall first(kAll);
  testing::for_every_kernel(first.args, [&](const std::string& kernel) {
    SparseBackwardCall with(kAll);
    with.run(kernel, 2);
    auto bits = with.output_bits();
    bits.pop_back();
    SparseBackwardOptions options = kAll;
    options.kl_target = false;
    SparseBackwardCall without(options);
    without.run(kernel, 2);
    EXPECT_TRUE(without.output_bits() == bits);
  });
}

/// The first tokens of a view.
TensorView head_of(const TensorView& view, int64_t tokens) {
  std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
  shape[0] = tokens;
  return {view.data(), view.dtype(), shape, view.strides()};
}

// The last two of the five tokens have lists of length 0.
TEST(SparseBackwardInvariants, EmptyTokensChangeNoBitOfTheOthers) {
  const SparseBackwardCall first(kAll);
  testing::for_every_kernel(first.args, [&](const std::string& kernel) {
    SparseBackwardCall call(kAll);
    SparsePrefillBwdArgs& a = call.args;
    const TensorView all_dq = a.dq;
    call.run(kernel, 2);
    const std::vector<uint8_t> dq = cases::contents(head_of(all_dq, 3));
    const std::vector<uint8_t> dkv = cases::contents(a.dkv);
    const std::vector<uint8_t> d_sink = cases::contents(a.d_sink);
    for (TensorView* view :
         {&a.d_out, &a.q, &a.out, &a.lse, &a.indices, &a.topk_length, &a.dq, &a.kl_target}) {
      *view = head_of(*view, 3);
    }
    call.run(kernel, 2);
    EXPECT_TRUE(cases::contents(a.dq) == dq);
    EXPECT_TRUE(cases::contents(a.dkv) == dkv);
    EXPECT_TRUE(cases::contents(a.d_sink) == d_sink);
  });
}

TEST(SparseBackwardInvariants, AFirstTokenAloneHasTheBitsThatItHasAmongOthers) {
  const SparseBackwardCall first(kAll);
  testing::for_every_kernel(first.args, [&](const std::string& kernel) {
    SparseBackwardCall call(kAll);
    SparsePrefillBwdArgs& a = call.args;
    call.run(kernel, 2);
    const std::vector<uint8_t> dq = cases::contents(head_of(a.dq, 1));
    const std::vector<uint8_t> kl_target = cases::contents(head_of(a.kl_target, 1));
    for (TensorView* view :
         {&a.d_out, &a.q, &a.out, &a.lse, &a.indices, &a.topk_length, &a.dq, &a.kl_target}) {
      *view = head_of(*view, 1);
    }
    call.run(kernel, 2);
    EXPECT_TRUE(cases::contents(a.dq) == dq);
    EXPECT_TRUE(cases::contents(a.kl_target) == kl_target);
  });
}

}  // namespace
}  // namespace tilewise
