// The oracle's gradients of sparse_prefill against central differences, and its kl_target.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/oracle_self/training_build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::AttentionResult;
using reference::Gradients;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct TokenCall {
  Floats q, kv, d_out, out, lse, sink_bias;
  Ints indices, topk_length;
  int64_t d_v = 3;

  TokenCall(int64_t tokens, int64_t heads, int64_t rows, Ints lists)
      : q({tokens, heads, 5}), kv({rows, 1, 5}), d_out({tokens, heads, 3}), indices(std::move(lists)) {
    fill_random(q, 1);
    fill_random(kv, 2);
    fill_random(d_out, 3);
  }

  AttentionResult forward() const {
    SparsePrefillFwdArgs args;
    fill(args);
    return attention(args, Arithmetic::kDouble);
  }
  void keep_outputs() {
    const AttentionResult result = forward();
    out = Floats({q.shape[0], q.shape[1], d_v});
    lse = Floats({q.shape[0], q.shape[1]});
    out.values.assign(result.out.begin(), result.out.end());
    lse.values.assign(result.lse.begin(), result.lse.end());
  }
  Gradients backward(Arithmetic kind = Arithmetic::kDouble) const {
    SparsePrefillBwdArgs args;
    fill(args);
    args.d_out = d_out.view();
    args.out = out.view();
    args.lse = lse.view();
    return training_backward(args, kind);
  }

 private:
  template <class Args>
  void fill(Args& args) const {
    args.q = q.view();
    args.kv = kv.view();
    args.indices = indices.view();
    args.d_v = d_v;
    args.softmax_scale = 0.6f;
    if (!topk_length.values.empty()) args.topk_length = topk_length.view();
    if (!sink_bias.values.empty()) args.sink_bias = sink_bias.view();
  }
};

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 3e-6 * (1 + std::fabs(expected[i]))) << what << " " << i;
  }
}

Gradients expect_slopes(TokenCall call) {
  call.keep_outputs();
  const Gradients gradients = call.backward();
  const auto loss = [&] { return loss_of(call.forward().out, call.d_out.values); };
  expect_near(gradients.dq.values, central_differences(call.q, loss), "dq");
  expect_near(gradients.dkv.values, central_differences(call.kv, loss), "dkv");
  EXPECT_THAT(gradients.dk.values, IsEmpty());
  EXPECT_THAT(gradients.dv.values, IsEmpty());
  if (!call.sink_bias.values.empty()) {
    expect_near(gradients.d_sink.values, central_differences(call.sink_bias, loss), "d_sink");
  }
  return gradients;
}

TokenCall plain() { return TokenCall(3, 2, 6, ints({3, 1, 4}, {0, 1, 2, 3, 5, 0, 3, 1, 0, 3, 5, 2})); }

TEST(OracleTokenGradients, Lists) {
  const Gradients gradients = expect_slopes(plain());
  EXPECT_THAT(gradients.dkv.reached, ElementsAre(1, 1, 1, 1, 0, 1));
  EXPECT_EQ(gradients.dkv.row_length, 5);
  for (size_t c = 20; c < 25; ++c) EXPECT_EQ(gradients.dkv.values[c], 0);
}

TEST(OracleTokenGradients, ManyHeads) {
  expect_slopes(TokenCall(2, 19, 5, ints({2, 1, 3}, {4, 0, 1, 2, 1, 0})));
}

TEST(OracleTokenGradients, SinkBias) {
  TokenCall call = plain();
  call.sink_bias = floats({0.75f, -1});
  expect_slopes(call);
}

TEST(OracleTokenGradients, HolesDuplicatesAndLengths) {
  TokenCall call = plain();
  call.indices = ints({3, 1, 5}, {0, -1, 0, 6, 0, std::numeric_limits<int32_t>::min(), 2, 2,
                                  std::numeric_limits<int32_t>::max(), 1, 5, 4, 3, 2, 1});
  expect_slopes(call);
  call.topk_length = ints({3}, {3, 100, 2});
  const Gradients gradients = expect_slopes(call);
  EXPECT_THAT(gradients.dkv.reached, ElementsAre(1, 1, 1, 0, 1, 1));
  call.topk_length = ints({3}, {-4, 0, 2});
  expect_slopes(call);
}

// Two heads that see row 0 three times and row 1 once, all scores 0.
TEST(OracleTokenGradients, KlTargetSumsOverHeadsAndEveryPlaceHasItsOwn) {
  TokenCall call(1, 2, 3, ints({1, 1, 6}, {0, -1, 1, 0, 3, 0}));
  std::fill(call.q.values.begin(), call.q.values.end(), 0.0f);
  call.keep_outputs();
  const auto near = [](double x) { return ::testing::DoubleNear(x, 1e-6); };
  const Gradients gradients = call.backward();
  EXPECT_THAT(gradients.kl_target.values, ElementsAre(near(0.5), 0.0, near(0.5), near(0.5), 0.0, near(0.5)));
  EXPECT_THAT(gradients.kl_target.reached, ElementsAre(1, 0, 1, 1, 0, 1));
  call.topk_length = ints({1}, {3});
  call.sink_bias = floats({std::log(2.0f), -HUGE_VALF});  // as heavy as both keys, and nothing
  call.keep_outputs();
  EXPECT_THAT(call.backward().kl_target.values, ElementsAre(near(0.75), 0.0, near(0.75), 0.0, 0.0, 0.0));
  EXPECT_THAT(call.backward(Arithmetic::kRounded).kl_target.values,
              ElementsAre(near(0.75), 0.0, near(0.75), 0.0, 0.0, 0.0));
}

TEST(OracleTokenGradients, LonelyTokensAndInfiniteSinks) {
  TokenCall call = plain();
  call.indices = ints({3, 1, 2}, {-1, 6, 0, 1, -1, -1});
  call.sink_bias = floats({HUGE_VALF, 0.5f});
  call.keep_outputs();
  const Gradients gradients = call.backward();
  EXPECT_THAT(gradients.dq.reached, ElementsAre(0, 0, 0, 1, 0, 0));
  EXPECT_THAT(gradients.dkv.reached, ElementsAre(1, 1, 0, 0, 0, 0));
  EXPECT_THAT(gradients.d_sink.reached, ElementsAre(0, 1));
  EXPECT_EQ(gradients.d_sink.values[0], 0);
  for (size_t i = 0; i < gradients.dq.values.size(); ++i) {
    if (i / 5 != 3) {
      EXPECT_EQ(gradients.dq.values[i], 0);
    }
  }
}

TEST(OracleTokenGradients, EmptyListsAndNoTokens) {
  TokenCall call(2, 2, 3, Ints({2, 1, 0}));
  call.keep_outputs();
  EXPECT_THAT(call.backward().dq.values, Each(0.0));
  EXPECT_THAT(call.backward().dkv.reached, Each(0));
  EXPECT_THAT(call.backward().kl_target.values, IsEmpty());
  TokenCall none(0, 2, 3, Ints({0, 1, 4}));
  none.keep_outputs();
  EXPECT_THAT(none.backward().dkv.values, Each(0.0));
  EXPECT_THAT(none.backward().dq.values, IsEmpty());
}

// A row that is not selected may hold anything.
TEST(OracleTokenGradients, UnselectedRowsDoNotMatter) {
  TokenCall call = plain();
  call.keep_outputs();
  const Gradients before = call.backward();
  std::fill_n(call.kv.values.begin() + 20, 5, NAN);
  const Gradients after = call.backward();
  EXPECT_EQ(before.dq.values, after.dq.values);
  EXPECT_EQ(before.dkv.values, after.dkv.values);
  EXPECT_EQ(before.kl_target.values, after.kl_target.values);
}

}  // namespace
}  // namespace tilewise::oracle_self
