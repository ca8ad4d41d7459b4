// The oracle of the fused operators: the permuted q, both rotations, the norm.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "reference/attention.h"
#include "reference/dequant.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::Arithmetic;
using reference::attention;
using reference::AttentionResult;
using ::testing::Each;

constexpr int64_t kDim = 512;
constexpr double kTiny = 1e-6;

// Position 0 turns nothing, position 1 by 90 degrees, position 2 pair j by (j + 1) / 40.
Floats angles() {
  Floats cos_sin({3, 64});
  for (int64_t j = 0; j < 32; ++j) {
    const float angle = static_cast<float>(j + 1) / 40;
    cos_sin.at({0, j}) = 1;
    cos_sin.at({1, 32 + j}) = 1;
    cos_sin.at({2, j}) = std::cos(angle);
    cos_sin.at({2, 32 + j}) = std::sin(angle);
  }
  return cos_sin;
}

// Some tokens and heads over unpaged rows, q given in the order of channels.
struct Fused {
  int64_t s_q;
  int64_t h_q;
  Bf16 q;  // permuted
  Bf16 kv;
  Ints indices;
  Ints positions;
  Floats cos_sin = angles();
  FusedPrefillArgs args;

  Fused(int64_t tokens, int64_t heads, int64_t rows)
      : s_q(tokens),
        h_q(heads),
        q({tokens, heads, kDim}),
        kv({rows, 1, kDim}),
        indices({tokens, 1, rows}),
        positions({tokens}) {
    for (size_t i = 0; i < indices.values.size(); ++i) {
      indices.values[i] = static_cast<int32_t>(i % static_cast<size_t>(rows));
    }
  }

  uint16_t& q_at(int64_t token, int64_t head, int64_t channel) {
    const int64_t run = channel / 16;  // runs of 16 channels, all heads of a run side by side
    return q.values[static_cast<size_t>(token * h_q * kDim + run * (h_q * 16) + head * 16 + channel % 16)];
  }

  void fill(FusedCommon& common) {
    common.q = q.view();
    common.token_positions = positions.view();
    common.cos_sin_cache = cos_sin.view();
  }

  AttentionResult run(Arithmetic arithmetic = Arithmetic::kDouble) {
    fill(args);
    args.kv = kv.view();
    args.indices = indices.view();
    return attention(args, arithmetic);
  }
};

// The score of a single key with a 1 in `key_channel` for a q with a 1 in `q_channel`.
double score(int64_t q_channel, int64_t key_channel, int32_t position) {
  Fused f(1, 1, 1);
  f.q_at(0, 0, q_channel) = bf16(1);
  f.kv.at({0, 0, key_channel}) = bf16(1);
  f.positions.at({0}) = position;
  return f.run().max_logits[0];
}

double rounded_to_bf16(float x) { return bf16_bits_to_f32(bf16(x)); }

TEST(OracleFused, UnitVectorsShowWhichChannelsTheRotationOfQMixes) {
  for (int64_t j = 0; j < 32; ++j) {
    const int64_t even = 448 + 2 * j;
    const float angle = static_cast<float>(j + 1) / 40;
    EXPECT_EQ(score(even, even, 1), 0);
    EXPECT_EQ(score(even, even + 1, 1), 1);
    EXPECT_EQ(score(even + 1, even, 1), -1);
    EXPECT_EQ(score(even, even, 2), rounded_to_bf16(std::cos(angle)));
    EXPECT_EQ(score(even, even + 1, 2), rounded_to_bf16(std::sin(angle)));
    EXPECT_EQ(score(even + 1, even, 2), -rounded_to_bf16(std::sin(angle)));
    EXPECT_EQ(score(even + 1, even + 1, 2), rounded_to_bf16(std::cos(angle)));
    EXPECT_EQ(score(even, 448 + (2 * j + 2) % 64, 2), 0);
    EXPECT_EQ(score(even, even - 448, 2), 0);
  }
  EXPECT_EQ(score(447, 447, 1), 1);
  EXPECT_EQ(score(0, 0, 1), 1);
}

TEST(OracleFused, UnitVectorsShowWhichChannelsTheRotationBackMixes) {
  for (int64_t channel = 440; channel < kDim; ++channel) {
    Fused f(1, 1, 1);
    f.kv.at({0, 0, channel}) = bf16(1);
    f.positions.at({0}) = 2;
    std::vector<double> expected(kDim);
    if (channel < 448) {
      expected[static_cast<size_t>(channel)] = 1;
    } else {
      const int64_t even = channel - channel % 2;
      const int64_t pair = (even - 448) / 2;
      const float angle = static_cast<float>(pair + 1) / 40;
      expected[static_cast<size_t>(even)] = channel == even ? std::cos(angle) : std::sin(angle);
      expected[static_cast<size_t>(even + 1)] = channel == even ? -std::sin(angle) : std::cos(angle);
    }
    const AttentionResult result = f.run();
    for (size_t c = 0; c < kDim; ++c) ASSERT_NEAR(result.out[c], expected[c], 1e-7) << channel << " to " << c;
  }
}

TEST(OracleFused, PositionsClamp) {
  for (const auto& [given, used] : {std::pair{-5, 0}, {7, 2}, {std::numeric_limits<int32_t>::max(), 2}}) {
    EXPECT_EQ(score(460, 460, given), score(460, 460, used));
    EXPECT_EQ(score(460, 461, given), score(460, 461, used));
  }
}

TEST(OracleFused, QIsPermuted) {
  Fused f(2, 3, 1);
  f.q.values[5 * 48 + 2 * 16 + 7] = bf16(3);  // head 2, channel 5 * 16 + 7
  f.kv.at({0, 0, 5 * 16 + 7}) = bf16(1);
  EXPECT_THAT(f.run().max_logits, ::testing::ElementsAre(0, 0, 3, 0, 0, 0));
  f.q.values.assign(f.q.values.size(), 0);
  f.q.values[3 * kDim + 5 * 48 + 7] = bf16(3);  // head 0 of the second token
  EXPECT_THAT(f.run().max_logits, ::testing::ElementsAre(0, 0, 0, 3, 0, 0));
}

TEST(OracleFused, NormFoldsIntoTheScoresOfItsHead) {
  Fused f(1, 2, 2);
  for (int64_t c = 0; c < kDim; ++c) f.q_at(0, 0, c) = bf16(2);
  f.q_at(0, 1, 3) = bf16(1);
  f.kv.at({0, 0, 3}) = bf16(1);
  f.args.q_norm_eps = 0.0f;
  EXPECT_NEAR(f.run().max_logits[0], 2 * 0.5, 1e-12);
  EXPECT_NEAR(f.run().max_logits[1], std::sqrt(512.0), 1e-12);
  f.args.q_norm_eps = 12.0f;  // 1 / sqrt(4 + 12)
  EXPECT_NEAR(f.run().max_logits[0], 2 * 0.25, 1e-12);
  EXPECT_NEAR(f.run().lse[0], std::log(std::exp(0.5) + 1), 1e-12);
  f.args.softmax_scale = 3;
  EXPECT_NEAR(f.run().max_logits[0], 1.5, 1e-12);
  f.args.q_norm_eps.reset();
  EXPECT_NEAR(f.run().max_logits[0], 6, 1e-12);
}

TEST(OracleFused, NormUsesTheRawQ) {
  Fused f(1, 1, 1);
  f.q_at(0, 0, 448) = bf16(1);
  f.q_at(0, 0, 449) = bf16(1);
  f.kv.at({0, 0, 448}) = bf16(1);
  f.positions.at({0}) = 2;
  f.args.q_norm_eps = 0.0f;
  const float angle = 1.0f / 40;
  const double rotated = rounded_to_bf16(std::fma(1.0f, std::cos(angle), -std::sin(angle)));
  EXPECT_NEAR(f.run().max_logits[0], 16 * rotated, 1e-12);  // 1 / sqrt(2 / 512)
}

// Rotates the last 64 of 512 values by the angles of position 2.
void turn(std::vector<double>& x, double direction, bool round) {
  for (size_t j = 0; j < 32; ++j) {
    const double angle = direction * static_cast<double>(j + 1) / 40;
    const double x0 = x[448 + 2 * j];
    const double x1 = x[449 + 2 * j];
    x[448 + 2 * j] = x0 * std::cos(angle) - x1 * std::sin(angle);
    x[449 + 2 * j] = x0 * std::sin(angle) + x1 * std::cos(angle);
  }
  if (!round) return;
  for (size_t c = 448; c < 512; ++c) x[c] = rounded_to_bf16(static_cast<float>(x[c]));
}

TEST(OracleFused, EqualsTheChainOfStepsOnRandomData) {
  Fused f(2, 5, 19);
  fill_random(f.q, 11, 0.3f);
  fill_random(f.kv, 12);
  f.indices.at({1, 0, 4}) = -1;
  f.indices.at({1, 0, 5}) = 19;
  f.positions = ints({2}, {2, 2});
  const Ints length = ints({2}, {19, 11});
  const Floats sink = floats({0.1f, 2, -3, 1, 0});
  f.args.topk_length = length.view();
  f.args.attn_sink = sink.view();
  f.args.softmax_scale = 0.4f;
  f.args.q_norm_eps = 0.5f;
  const AttentionResult result = f.run();
  const AttentionResult rounded = f.run(Arithmetic::kRounded);
  for (int64_t t = 0; t < 2; ++t) {
    std::vector<std::vector<double>> keys;
    for (int64_t k = 0; k < (t == 0 ? 19 : 11); ++k) {
      if (t == 0 || (k != 4 && k != 5)) keys.push_back(values_of(f.kv, {k}, kDim));
    }
    for (int64_t h = 0; h < 5; ++h) {
      std::vector<double> q;
      for (int64_t c = 0; c < kDim; ++c) q.push_back(bf16_bits_to_f32(f.q_at(t, h, c)));
      const double squares = std::inner_product(q.begin(), q.end(), q.begin(), 0.0);
      turn(q, 1, true);
      PlainRow expected =
          plain_softmax(q, keys, static_cast<double>(0.4f) / std::sqrt(squares / kDim + 0.5), kDim);
      turn(expected.out, -1, false);
      const double share = 1 / (1 + std::exp(sink.values[static_cast<size_t>(h)] - expected.lse));
      const size_t row = static_cast<size_t>(result.row(0, t, h));
      // The rotation's fp32 steps may round single elements of q the other way.
      EXPECT_NEAR(result.lse[row], expected.lse, 2e-3);
      EXPECT_NEAR(result.max_logits[row], expected.max, 2e-3);
      EXPECT_NEAR(rounded.lse[row], result.lse[row], 1e-5);
      for (size_t c = 0; c < kDim; ++c) {
        EXPECT_NEAR(result.out[row * kDim + c], share * expected.out[c], 2e-3);
        EXPECT_NEAR(rounded.out[row * kDim + c], result.out[row * kDim + c], 0.01);
      }
    }
  }
}

TEST(OracleFused, LonelyTokensBesideOthers) {
  Fused f(2, 2, 3);
  fill_random(f.q, 1);
  fill_random(f.kv, 2);
  const Ints length = ints({2}, {0, 3});
  f.args.topk_length = length.view();
  const AttentionResult result = f.run();
  EXPECT_THAT(std::vector(result.out.begin(), result.out.begin() + 2 * kDim), Each(0.0));
  EXPECT_EQ(result.lse[0], kInf);
  EXPECT_EQ(result.max_logits[1], -kInf);
  EXPECT_TRUE(std::isfinite(result.lse[2]));
  EXPECT_NE(result.out[2 * kDim], 0);
}

// The same rows once unpaged, once as the two bf16 caches of the decode form.
struct Decode {
  Fused fused{2, 2, 6};
  Ints main_lists = ints({2, 4}, {0, 1, 2, 6, 3, -1, 2, 1});
  Ints extra_lists = ints({2, 2}, {0, 1, 2, 7});
  Floats sink = floats({0.5f, 1});
  Bf16 main_cache{{2, 2, 1, kDim}};
  Bf16 extra_cache{{1, 3, 1, kDim}};

  Decode() {
    fill_random(fused.q, 21, 0.1f);
    fill_random(fused.kv, 22);
    fused.positions = ints({2}, {1, 2});
    // rows 0..3 in the main cache, rows 3..5 in the extra cache
    main_cache.values.assign(fused.kv.values.begin(), fused.kv.values.begin() + 4 * kDim);
    extra_cache.values.assign(fused.kv.values.begin() + 3 * kDim, fused.kv.values.end());
    fused.indices = ints({2, 1, 5}, {0, 1, 2, 3, 4, 3, 2, 1, 5, -1});
  }

  template <class Args>
  Args decode_args() {
    Args args;
    fused.fill(args);
    args.attn_sink = sink.view();
    args.kv_cache = main_cache.view();
    args.indices = main_lists.view();
    args.extra_cache = extra_cache.view();
    args.extra_indices = extra_lists.view();
    return args;
  }
};

TEST(OracleFused, DecodeReadsBothCaches) {
  Decode d;
  d.fused.args.attn_sink = d.sink.view();
  const AttentionResult prefill = d.fused.run();
  const AttentionResult decode = attention(d.decode_args<FusedDecodeArgs>(), Arithmetic::kDouble);
  ASSERT_EQ(decode.out.size(), prefill.out.size());
  for (size_t i = 0; i < decode.out.size(); ++i) EXPECT_NEAR(decode.out[i], prefill.out[i], 1e-12);
  for (size_t i = 0; i < decode.lse.size(); ++i) EXPECT_NEAR(decode.lse[i], prefill.lse[i], 1e-12);
}

TEST(OracleFused, DecodeLengthsAreATokens) {
  Decode d;
  const Ints length = ints({2}, {1, 0});
  const Ints extra_length = ints({2}, {0, 1});
  auto args = d.decode_args<FusedDecodeArgs>();
  args.topk_length = length.view();
  args.extra_topk_length = extra_length.view();
  const AttentionResult result = attention(args, Arithmetic::kDouble);
  d.fused.indices = ints({2, 1, 1}, {0, 5});
  EXPECT_THAT(result.lse, ::testing::Pointwise(::testing::DoubleNear(1e-12), d.fused.run().lse));
}

TEST(OracleFused, PartialsTakeNoSink) {
  Decode d;
  const AttentionResult partials = attention(d.decode_args<FusedDecodePartialsArgs>(), Arithmetic::kDouble);
  EXPECT_THAT(partials.out, ::testing::Pointwise(::testing::DoubleNear(kTiny), d.fused.run().out));
}

}  // namespace
}  // namespace tilewise::oracle_self
