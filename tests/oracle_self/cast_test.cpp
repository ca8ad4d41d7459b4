// The oracle's FP8 cast of fused outputs, and that its comparison finds what is wrong and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/fused_cast.h"
#include "tests/oracle_self/build.h"

namespace tilewise::oracle_self {
namespace {

using reference::AttentionResult;
using reference::compare_fused;
using reference::Comparison;
using reference::fused_cast;
using reference::FusedCast;

AttentionResult rows(int64_t s_q, int64_t h_q) {
  AttentionResult result;
  result.s_q = s_q;
  result.h_q = h_q;
  result.d_v = 512;
  result.out.resize(static_cast<size_t>(s_q * h_q * 512));
  result.lse.resize(static_cast<size_t>(s_q * h_q));
  result.max_logits.resize(result.lse.size());
  return result;
}

int byte_of(const FusedCast& cast, size_t group) {
  return static_cast<int>(static_cast<uint32_t>(cast.scales[group / 4]) >> (8 * (group % 4)) & 255);
}

// Exponent byte for a group with this largest magnitude.
int exponent_for(double amax) {
  AttentionResult result = rows(1, 1);
  result.out[40] = -amax;
  return byte_of(fused_cast(result, 1), 1);
}

TEST(OracleCast, ExponentIsTheCeilingOfTheLogarithm) {
  EXPECT_EQ(exponent_for(448), 127);
  EXPECT_EQ(exponent_for(448.001), 128);
  EXPECT_EQ(exponent_for(896), 128);
  EXPECT_EQ(exponent_for(447), 127);
  EXPECT_EQ(exponent_for(224), 126);
  EXPECT_EQ(exponent_for(1.75), 119);
  EXPECT_EQ(exponent_for(0), 105);
  EXPECT_EQ(exponent_for(1e-9), 105);
  EXPECT_EQ(exponent_for(1.06e-4), 105);
  EXPECT_EQ(exponent_for(1.07e-4), 106);  // 448 * 2^-22 = 1.0681e-4
}

TEST(OracleCast, CodesAndLayout) {
  AttentionResult result = rows(2, 4);
  const size_t row = static_cast<size_t>(result.row(0, 1, 3)) * 512;
  result.out[row + 100] = 448;
  result.out[row + 101] = -3;
  result.out[row + 102] = std::nan("");
  const FusedCast cast = fused_cast(result, 2);
  ASSERT_EQ(cast.codes.size(), 2u * 4 * 512);
  ASSERT_EQ(cast.scales.size(), 2u * 4 * 4);
  // token 1, group 1, head 1 of 2 in it, channel 100 = 3 * 32 + 4
  const size_t block = 3 * 1024;
  EXPECT_EQ(cast.codes[block + 3 * 64 + 32 + 4], 0x7E);
  EXPECT_EQ(cast.codes[block + 3 * 64 + 32 + 5], 0xC4);
  EXPECT_EQ(cast.codes[block + 3 * 64 + 32 + 6], 0x7F);
  EXPECT_EQ(std::count(cast.codes.begin(), cast.codes.end(), 0), 2 * 4 * 512 - 3);
  // its exponent is byte 3 of word 1 of the block's eight words
  for (size_t group = 0; group < 2 * 4 * 16; ++group) {
    EXPECT_EQ(byte_of(cast, group), group == 3 * 32 + 7 ? 127 : 105) << group;
  }
}

// A result with all kinds of magnitudes, one lonely row and one NaN, and the kernel's output for it.
struct Casted {
  static constexpr int64_t kTokens = 3;
  static constexpr int64_t kHeads = 4;
  AttentionResult oracle = rows(kTokens, kHeads);
  AttentionResult rounded = oracle;
  Owned<uint8_t, DType::kE4M3> codes{{kTokens, 2, 1024}};
  Ints scales{{kTokens, 2, 8}};

  Casted() {
    std::mt19937 generator(5);
    std::normal_distribution<double> normal;
    for (double& x : oracle.out) x = std::clamp(normal(generator), -3.4, 3.4);
    oracle.out[11 * 512 + 400] = 2;
    oracle.out[1 * 512 + 7] = -2;
    for (size_t c = 0; c < 512; ++c) oracle.out[5 * 512 + c] = 0;
    oracle.lse[5] = kInf;
    oracle.max_logits[5] = -kInf;
    oracle.out[6 * 512 + 17] = std::nan("");
    rounded = oracle;
    write(oracle);
  }
  void write(const AttentionResult& result) {
    const FusedCast cast = fused_cast(result, 2);
    codes.values = cast.codes;
    scales.values = cast.scales;
  }
  Comparison compare() const { return compare_fused(codes.view(), scales.view(), oracle, rounded, 2); }

  static size_t code_at(int64_t token, int64_t head, int64_t channel) {
    return static_cast<size_t>((token * 2 + head / 2) * 1024 + channel / 32 * 64 + head % 2 * 32 +
                               channel % 32);
  }
  void add_to_byte(int64_t token, int64_t head, int64_t channel, int change) {
    const size_t group = code_at(token, head, channel) / 32;
    uint32_t word = static_cast<uint32_t>(scales.values[group / 4]);
    word += static_cast<uint32_t>(change) << (8 * (group % 4));
    scales.values[group / 4] = static_cast<int32_t>(word);
  }
};

TEST(OracleCast, AnExactCastPasses) {
  const Comparison found = Casted().compare();
  EXPECT_TRUE(found.ok) << found.where;
  EXPECT_EQ(found.max_error, 0);
}

TEST(OracleCast, OneCodeOffPassesTwoFail) {
  Casted c;
  uint8_t& code = c.codes.values[Casted::code_at(2, 3, 400)];
  ASSERT_GT(code & 0x7F, 8);  // no subnormal
  ASSERT_LT(code & 0x7F, 0x7C);
  code = static_cast<uint8_t>(code + 1);
  EXPECT_TRUE(c.compare().ok);
  EXPECT_GT(c.compare().worst_ratio, 0.9);
  code = static_cast<uint8_t>(code + 1);
  const Comparison found = c.compare();
  EXPECT_FALSE(found.ok);
  EXPECT_THAT(found.where, ::testing::HasSubstr("token 2, head 3, channel 400"));
}

TEST(OracleCast, AWrongSignOrPlaceFails) {
  Casted c;
  uint8_t& code = c.codes.values[Casted::code_at(0, 1, 7)];
  ASSERT_GT(code & 0x7F, 8);
  code ^= 0x80;
  EXPECT_FALSE(c.compare().ok);

  Casted swapped;
  std::swap_ranges(swapped.codes.values.begin(), swapped.codes.values.begin() + 32,
                   swapped.codes.values.begin() + 32);  // two heads
  EXPECT_FALSE(swapped.compare().ok);
}

TEST(OracleCast, ExponentsMustBeEqual) {
  for (int change : {-1, 1}) {
    Casted c;
    c.add_to_byte(1, 3, 256, change);
    const Comparison found = c.compare();
    EXPECT_FALSE(found.ok);
    EXPECT_THAT(found.where, ::testing::HasSubstr("token 1, head 3, channels 256..: exponent byte"));
  }
}

// A group whose largest magnitude is close to a step of the exponent: the other side's exponent is right as
// well when the attention's bound reaches over the step.
TEST(OracleCast, ExponentsMayDifferAtAStepWithinTheBound) {
  for (double side : {-1.0, 1.0}) {
    Casted c;
    const size_t row = static_cast<size_t>(c.oracle.row(0, 0, 0)) * 512;
    for (size_t i = 0; i < 512; ++i) c.oracle.out[row + i] = 100 + static_cast<double>(i) / 512;
    c.oracle.out[row + 64] = 448 + 3 * side;
    c.rounded = c.oracle;
    AttentionResult kernel = c.oracle;
    kernel.out[row + 64] = 448 - 0.1 * side;
    c.write(kernel);
    EXPECT_FALSE(c.compare().ok);  // an ulp of bfloat16 is 2
    c.rounded.out[row + 5] += 0.6;
    EXPECT_TRUE(c.compare().ok) << c.compare().where;
    c.oracle.out[row + 64] = c.rounded.out[row + 64] = 448 + 3.5 * side;
    EXPECT_FALSE(c.compare().ok);
  }
}

TEST(OracleCast, NanPlaces) {
  Casted c;
  c.codes.values[Casted::code_at(1, 2, 17)] = 0xFF;  // NaN, but not the code of the contract
  EXPECT_FALSE(c.compare().ok);
  c.codes.values[Casted::code_at(1, 2, 17)] = 0x10;
  EXPECT_FALSE(c.compare().ok);
  c.codes.values[Casted::code_at(1, 2, 17)] = 0x7F;
  EXPECT_TRUE(c.compare().ok);
  c.codes.values[Casted::code_at(1, 2, 18)] = 0x7F;
  EXPECT_FALSE(c.compare().ok);
  Casted d;
  d.codes.values[Casted::code_at(0, 0, 500)] = 0x7F;
  EXPECT_FALSE(d.compare().ok);
}

TEST(OracleCast, LonelyRowsAreExact) {
  Casted c;
  c.codes.values[Casted::code_at(1, 1, 3)] = 0x80;
  EXPECT_FALSE(c.compare().ok);
  Casted d;
  d.add_to_byte(1, 1, 480, 1);
  EXPECT_FALSE(d.compare().ok);
}

TEST(OracleCast, ScalesWithTheTokensSideBySide) {
  Casted c;
  // strides (1, 8 * 12, 12): the operators' own layout, in a buffer for 12 tokens
  std::vector<int32_t> buffer(2 * 8 * 12, -1);
  for (int64_t s = 0; s < Casted::kTokens; ++s) {
    for (int64_t g = 0; g < 2; ++g) {
      for (int64_t col = 0; col < 8; ++col) {
        buffer[static_cast<size_t>(s + 4 + g * 96 + col * 12)] = c.scales.at({s, g, col});
      }
    }
  }
  const std::vector<int64_t> shape = {Casted::kTokens, 2, 8};
  const std::vector<int64_t> strides = {1, 96, 12};
  const TensorView view(buffer.data() + 4, DType::kInt32, shape, strides);
  EXPECT_TRUE(compare_fused(c.codes.view(), view, c.oracle, c.rounded, 2).ok);
  buffer[4 + 96 + 12]++;
  EXPECT_FALSE(compare_fused(c.codes.view(), view, c.oracle, c.rounded, 2).ok);
}

}  // namespace
}  // namespace tilewise::oracle_self
