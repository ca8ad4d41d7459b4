// The oracle's gradients against central differences of its forward operators, and by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/oracle_self/training_build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::Gradients;
using reference::GradientTensor;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 3e-6 * (1 + std::fabs(expected[i]))) << what << " " << i;
  }
}

bool any_nonzero(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double x) { return x != 0; });
}

// All coordinates of all inputs.
void expect_slopes(TrainingCall call, bool block_sparse) {
  call.keep_outputs(block_sparse);
  const Gradients gradients = call.backward(block_sparse);
  const auto loss = [&] { return loss_of(call.forward(block_sparse).out, call.d_out.values); };
  expect_near(gradients.dq.values, central_differences(call.q, loss), "dq");
  expect_near(gradients.dk.values, central_differences(call.k, loss), "dk");
  expect_near(gradients.dv.values, central_differences(call.v, loss), "dv");
  EXPECT_TRUE(any_nonzero(gradients.dq.values) && any_nonzero(gradients.dk.values));
  if (call.sink_bias.values.empty()) {
    EXPECT_THAT(gradients.d_sink.values, IsEmpty());
  } else {
    expect_near(gradients.d_sink.values, central_differences(call.sink_bias, loss), "d_sink");
  }
}

TrainingCall random_call(int32_t len_q, int32_t len_k, int64_t h_q = 1, int64_t h_kv = 1) {
  TrainingCall call(len_q, len_k, h_q, h_kv, 5, 3);
  call.randomise();
  return call;
}

TEST(OracleGradients, Dense) { expect_slopes(random_call(4, 6), false); }

TEST(OracleGradients, Causal) {
  TrainingCall fewer = random_call(4, 6);
  fewer.causal = true;
  expect_slopes(fewer, false);
  TrainingCall more = random_call(6, 4);
  more.causal = true;
  expect_slopes(more, false);
}

TEST(OracleGradients, Windows) {
  for (const Window window : {Window{1, 0}, Window{1, 2}, Window{2, -1}, Window{-1, 1}}) {
    TrainingCall call = random_call(5, 6);
    call.window = window;
    expect_slopes(call, false);
    call.causal = true;
    expect_slopes(call, false);
  }
}

TEST(OracleGradients, SinkBias) {
  TrainingCall call = random_call(4, 5, 3, 3);
  call.sink_bias = floats({0.5f, -2, 3});
  call.causal = true;
  expect_slopes(call, false);
}

TEST(OracleGradients, GroupsOfQueryHeads) {
  expect_slopes(random_call(3, 5, 4, 2), false);
  expect_slopes(random_call(11, 5, 6, 1), false);
}

TEST(OracleGradients, SequencesAndRowsOutside) {
  TrainingCall call = random_call(9, 9, 2, 1);
  call.cu_seqlens_q = ints({4}, {1, 4, 4, 8});
  call.cu_seqlens_k = ints({4}, {0, 3, 5, 8});
  call.causal = true;
  call.sink_bias = floats({0.25f, 1});
  expect_slopes(call, false);
  call.max_seqlen_q = 2;
  call.max_seqlen_k = 2;
  expect_slopes(call, false);
}

TEST(OracleGradients, Selections) {
  TrainingCall call = random_call(7, 8, 4, 2);
  expect_slopes(call, true);
  call.q2k = ints({4, 3}, {0, 2, 0, 1, -1, 1, 5, 0, 1, 2, 2, -7});
  call.sink_bias = floats({0, 1, -1, 2});
  expect_slopes(call, true);
  call.causal = true;
  expect_slopes(call, true);
  call.window = {3, -1};
  expect_slopes(call, true);
}

TEST(OracleGradients, SelectionsOfHeadsAndSequences) {
  TrainingCall call = random_call(7, 8, 2, 1);
  call.cu_seqlens_q = ints({3}, {0, 3, 7});
  call.cu_seqlens_k = ints({3}, {0, 4, 8});
  call.q2k = ints({2, 3, 2}, {0, 1, 1, -1, 0, 0, 1, -1, 0, 3, 1, 0});
  expect_slopes(call, true);
}

// One query of score 0 beside a key of score 0: P = (1/2, 1/2).
TrainingCall by_hand() {
  TrainingCall call(1, 2, 1, 1, 2, 2);
  call.scale = 2;
  call.q.values = {1, 0};
  call.k.values = {0, 3, 0, 5};
  call.v.values = {1, 0, 0, 1};
  call.d_out.values = {4, 0};
  call.keep_outputs(false);
  return call;
}

// delta = 4 * 1/2, dP = (4, 0), dS = (1/2 * 2, 1/2 * -2).
TEST(OracleGradients, ByHand) {
  const Gradients gradients = by_hand().backward(false);
  const auto near = [](double x) { return ::testing::DoubleNear(x, 1e-6); };
  EXPECT_THAT(gradients.dq.values, ElementsAre(near(0), near(2 * (3 - 5))));
  EXPECT_THAT(gradients.dk.values, ElementsAre(near(2), near(0), near(-2), near(0)));
  EXPECT_THAT(gradients.dv.values, ElementsAre(near(2), near(0), near(2), near(0)));
  EXPECT_THAT(gradients.dkv.values, IsEmpty());
  EXPECT_THAT(gradients.kl_target.values, IsEmpty());
  EXPECT_EQ(gradients.dk.row_length, 2);
  EXPECT_THAT(gradients.dk.reached, ElementsAre(1, 1));
}

TEST(OracleGradients, TheGivenLseAndOutAreBelieved) {
  TrainingCall call = by_hand();
  call.lse.values[0] += kLn2;  // P = (1/4, 1/4)
  call.out.values = {0, 7};    // delta = 0, dS = (1, 0)
  const Gradients gradients = call.backward(false);
  const auto near = [](double x) { return ::testing::DoubleNear(x, 1e-6); };
  EXPECT_THAT(gradients.dq.values, ElementsAre(near(0), near(6)));
  EXPECT_THAT(gradients.dk.values, ElementsAre(near(2), near(0), near(0), near(0)));
  EXPECT_THAT(gradients.dv.values, ElementsAre(near(1), near(0), near(1), near(0)));
}

TEST(OracleGradients, SinkByHand) {
  TrainingCall call = by_hand();
  call.sink_bias = floats({std::log(2.0f)});  // P = (1/4, 1/4), of the sink 1/2
  call.keep_outputs(false);
  EXPECT_NEAR(call.backward(false).d_sink.values[0], -0.5 * 4 * 0.25, 1e-6);
}

TEST(OracleGradients, LonelyRowsHaveNone) {
  TrainingCall call = random_call(4, 2);
  call.causal = true;  // two rows see nothing
  call.keep_outputs(false);
  for (size_t i = 0; i < 2; ++i) ASSERT_EQ(call.lse.values[i], HUGE_VALF);
  const Gradients gradients = call.backward(false);
  EXPECT_THAT(gradients.dq.reached, ElementsAre(0, 0, 1, 1));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(gradients.dq.values[i], 0);
  // Nor do they move keys, whatever their own values are.
  std::fill_n(call.q.values.begin(), 10, NAN);
  std::fill_n(call.d_out.values.begin(), 6, NAN);
  EXPECT_EQ(call.backward(false).dk.values, gradients.dk.values);
  EXPECT_EQ(call.backward(false).dv.values, gradients.dv.values);
}

TEST(OracleGradients, ALonelyRowMovesNoSink) {
  TrainingCall call = random_call(3, 1);
  call.sink_bias = floats({0.5f});
  call.causal = true;
  call.keep_outputs(false);
  ASSERT_EQ(call.lse.values[0], 0.5f);
  const double d_sink = call.backward(false).d_sink.values[0];
  call.d_out.at({0, 0, 0}) = 1000;
  EXPECT_EQ(call.backward(false).d_sink.values[0], d_sink);
  call.cu_seqlens_k = ints({2}, {0, 0});
  call.keep_outputs(false);
  EXPECT_EQ(call.backward(false).d_sink.values[0], 0);
}

TEST(OracleGradients, InfiniteSinks) {
  TrainingCall call = random_call(3, 4, 3, 3);
  const Gradients plain = [&] {
    call.keep_outputs(false);
    return call.backward(false);
  }();
  call.sink_bias = floats({-HUGE_VALF, HUGE_VALF, 0});
  call.keep_outputs(false);
  for (const Arithmetic kind : {Arithmetic::kDouble, Arithmetic::kRounded}) {
    const Gradients gradients = call.backward(false, kind);
    EXPECT_EQ(gradients.d_sink.values[0], 0);
    EXPECT_EQ(gradients.d_sink.values[1], 0);
    EXPECT_NE(gradients.d_sink.values[2], 0);
    EXPECT_THAT(gradients.d_sink.reached, ElementsAre(0, 0, 1));
    EXPECT_THAT(gradients.dq.reached, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1));
    EXPECT_THAT(gradients.dk.reached, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1));
    for (const GradientTensor* tensor : {&gradients.dq, &gradients.dk}) {
      for (size_t c = 5; c < 10; ++c) EXPECT_EQ(tensor->values[c], 0);
    }
  }
  const Gradients gradients = call.backward(false);
  for (size_t c = 0; c < 5; ++c) EXPECT_EQ(gradients.dk.values[c], plain.dk.values[c]);
}

TEST(OracleGradients, RowsOutsideAndUnseenRowsAreNotReached) {
  TrainingCall call = random_call(4, 5);
  call.cu_seqlens_q = ints({2}, {1, 3});
  call.cu_seqlens_k = ints({2}, {1, 4});
  call.window = {0, 0};
  call.keep_outputs(false);
  // What lies outside may hold anything.
  std::fill_n(call.q.values.begin(), 5, NAN);
  std::fill_n(call.d_out.values.begin(), 3, NAN);
  std::fill_n(call.k.values.begin(), 10, NAN);
  const Gradients gradients = call.backward(false);
  EXPECT_THAT(gradients.dq.reached, ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(gradients.dk.reached, ElementsAre(0, 0, 1, 1, 0));
  EXPECT_THAT(gradients.dv.reached, ElementsAre(0, 0, 1, 1, 0));
  for (const GradientTensor* tensor : {&gradients.dq, &gradients.dk, &gradients.dv}) {
    EXPECT_TRUE(std::all_of(tensor->values.begin(), tensor->values.end(), [](double x) { return x == x; }));
  }
  EXPECT_EQ(gradients.dk.values[5], 0);
}

// Queries [1, 3) with keys [0, 2), then queries [0, 2) with keys [1, 3): of the first sequence, query 2 and
// key 0 stay. lse and out are those that stay, too.
TEST(OracleGradients, RowsThatTwoSequencesClaim) {
  TrainingCall call = random_call(3, 3);
  call.cu_seqlens_q = ints({4}, {1, 3, 0, 2});
  call.cu_seqlens_k = ints({4}, {0, 2, 1, 3});
  call.sink_bias = floats({0.5f});
  call.keep_outputs(false);
  const auto of = [&](Ints cu_q, Ints cu_k) {
    TrainingCall one = call;
    one.cu_seqlens_q = std::move(cu_q);
    one.cu_seqlens_k = std::move(cu_k);
    return one.backward(false);
  };
  const Gradients first = of(ints({2}, {1, 3}), ints({2}, {0, 2}));
  const Gradients second = of(ints({2}, {0, 2}), ints({2}, {1, 3}));
  const Gradients both = call.backward(false);
  for (size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(both.dq.values[i], (i < 10 ? second : first).dq.values[i]);
    EXPECT_EQ(both.dk.values[i], (i < 5 ? first : second).dk.values[i]);
  }
  EXPECT_NEAR(both.d_sink.values[0], first.d_sink.values[0] + second.d_sink.values[0], 1e-12);
}

// P = exp(-1) and dS = P * 3: both are rounded to the type of q where they are factors, and the scale is not
// part of them.
TEST(OracleGradients, RoundedArithmeticRoundsFactors) {
  TrainingCall call(1, 1, 1, 1, 1, 1);
  call.scale = 0.7f;
  const uint16_t one = bf16(1);
  const TensorView one_bf16(&one, DType::kBF16, {1, 1, 1});
  call.out = Floats({1, 1, 1});
  call.lse = floats({1.7f});
  call.lse.shape = {1, 1};
  call.d_out.values = {3};
  call.k.values = {1};
  call.v.values = {1};
  DensePrefillBwdArgs args = call.with_outputs(call.common<DensePrefillBwdArgs>());
  args.q = one_bf16;
  const float p = std::exp(0.7f - 1.7f);
  const auto rounded = [](float x) { return static_cast<double>(bf16_bits_to_f32(bf16(x))); };
  const Gradients gradients = training_backward(args, Arithmetic::kRounded);
  EXPECT_NEAR(gradients.dv.values[0], 3 * rounded(p), 1e-6);
  EXPECT_NEAR(gradients.dk.values[0], static_cast<double>(0.7f) * rounded(3 * p), 1e-6);
  EXPECT_NEAR(gradients.dq.values[0], static_cast<double>(0.7f) * rounded(3 * p), 1e-6);
  EXPECT_GT(std::fabs(rounded(p) - static_cast<double>(p)), 1e-4);
}

}  // namespace
}  // namespace tilewise::oracle_self
