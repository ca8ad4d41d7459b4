// The fused operators against their parts: the chain of steps, which channels a rotation mixes, how results
// are cast, and outputs that several calls share. Every test runs every kernel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cases/data.h"
#include "cases/fill.h"
#include "cases/judge.h"
#include "core/numeric.h"
#include "tests/support/device.h"
#include "tests/support/kernels.h"

namespace tilewise {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr int64_t kRope = 448;  // the first rotated channel
constexpr int64_t kD = 512;

// Runs `body` once for each kernel of this machine, which the calls inside then use by name.
void with_every_kernel(const std::function<void(const PlanOptions&)>& body) {
  for (const std::string& kernel : testing::kernels_of(testing::device(), true)) {
    SCOPED_TRACE("kernel " + kernel);
    PlanOptions options;
    options.kernel = kernel;
    options.threads = 1;
    body(options);
  }
}

// Place of (head, channel) in a token of permuted q.
size_t q_place(int64_t head, int64_t channel, int64_t heads) {
  return static_cast<size_t>(channel / 16 * heads * 16 + head * 16 + channel % 16);
}

// Place of (head of a group, channel) in a group of out_fp8.
size_t out_place(int64_t head, int64_t channel, int64_t group_heads) {
  return static_cast<size_t>(channel / 32 * group_heads * 32 + head * 32 + channel % 32);
}

uint16_t bf16(float x) { return f32_to_bf16_bits(x); }
float f32(uint16_t bits) { return bf16_bits_to_f32(bits); }

// A fused_prefill of one query token and one key, the key's row and the query's set by hand.
struct OneKey {
  explicit OneKey(int64_t heads)
      : h(heads),
        q(static_cast<size_t>(heads * kD)),
        kv(kD),
        cos_sin(cases::kMaxPositions * 64),
        codes(heads * kD, 0),
        scales(static_cast<size_t>(heads * 4)),
        out(static_cast<size_t>(heads * kD)),
        lse(static_cast<size_t>(heads)) {
    cases::fill_cos_sin({cos_sin.data(), DType::kFP32, {cases::kMaxPositions, 64}});
  }

  FusedPrefillArgs args() {
    FusedPrefillArgs a;
    a.q = {q.data(), DType::kBF16, {1, h, kD}};
    a.kv = {kv.data(), DType::kBF16, {1, 1, kD}};
    a.indices = {&index, DType::kInt32, {1, 1, 1}};
    a.token_positions = {&position, DType::kInt32, {1}};
    a.cos_sin_cache = {cos_sin.data(), DType::kFP32, {cases::kMaxPositions, 64}};
    a.out_fp8 = {codes.data(), DType::kE4M3, {1, 1, h * kD}};
    a.out_sf = {scales.data(), DType::kInt32, {1, 1, h * 4}};
    a.out_bf16 = {out.data(), DType::kBF16, {1, h, kD}};
    a.lse = {lse.data(), DType::kFP32, {1, h}};
    return a;
  }

  float cos(int64_t pair) const { return cos_sin[static_cast<size_t>(position * 64 + pair)]; }
  float sin(int64_t pair) const { return cos_sin[static_cast<size_t>(position * 64 + 32 + pair)]; }

  uint8_t code(int64_t head, int64_t channel) const { return codes.data()[out_place(head, channel, h)]; }
  int64_t zero_codes() const { return std::count(codes.data(), codes.data() + codes.bytes(), 0); }
  uint8_t exponent(int64_t head, int64_t channel) const {
    const size_t group = out_place(head, channel, h) / 32;
    return static_cast<uint8_t>(static_cast<uint32_t>(scales[group / 4]) >> (8 * (group % 4)));
  }
  float cast_value(int64_t head, int64_t channel) const {
    return e4m3_to_f32(code(head, channel)) * ue8m0_to_f32(exponent(head, channel));
  }

  int64_t h;
  int32_t index = 0;
  int32_t position = 0;
  std::vector<uint16_t> q, kv;
  std::vector<float> cos_sin;
  cases::Buffer codes;
  std::vector<int32_t> scales;
  std::vector<uint16_t> out;
  std::vector<float> lse;
};

// The logit of one key is the lse, so a unit query and a unit key read one entry of the rotation's matrix
// each.
TEST(Fusion, QueryRotationMixesNeighbouringChannels) {
  with_every_kernel([](const PlanOptions& options) {
    OneKey call(3);
    for (const int32_t position : {0, 1, 77}) {
      call.position = position;
      for (int64_t pair = 0; pair < 32; ++pair) {
        const int64_t even = kRope + 2 * pair;
        const float cos = f32(bf16(call.cos(pair)));
        const float sin = f32(bf16(call.sin(pair)));
        const auto logit = [&](int64_t query_channel, int64_t key_channel) {
          std::fill(call.q.begin(), call.q.end(), uint16_t{0});
          std::fill(call.kv.begin(), call.kv.end(), uint16_t{0});
          call.q[q_place(1, query_channel, call.h)] = bf16(1.0f);
          call.kv[static_cast<size_t>(key_channel)] = bf16(1.0f);
          testing::call(call.args(), options);
          EXPECT_EQ(call.lse[0], 0.0f) << "another head's logit";
          return call.lse[1];
        };
        ASSERT_EQ(logit(even, even), cos) << "pair " << pair;
        ASSERT_EQ(logit(even, even + 1), sin) << "pair " << pair;
        ASSERT_EQ(logit(even + 1, even), -sin) << "pair " << pair;
        ASSERT_EQ(logit(even + 1, even + 1), cos) << "pair " << pair;
        const int64_t other = kRope + (2 * pair + 2) % 64;
        ASSERT_EQ(logit(even, other), 0.0f) << "pair " << pair;
        ASSERT_EQ(logit(even, pair), 0.0f) << "pair " << pair;
      }
      std::fill(call.q.begin(), call.q.end(), uint16_t{0});
    }
  });
}

TEST(Fusion, ChannelsBelowTheRotatedOnesKeepTheirPlace) {
  with_every_kernel([](const PlanOptions& options) {
    OneKey call(5);
    call.position = 33;
    for (const int64_t channel : {int64_t{0}, int64_t{15}, int64_t{16}, int64_t{130}, kRope - 1}) {
      std::fill(call.q.begin(), call.q.end(), uint16_t{0});
      std::fill(call.kv.begin(), call.kv.end(), uint16_t{0});
      call.q[q_place(4, channel, call.h)] = bf16(2.0f);
      call.kv[static_cast<size_t>(channel)] = bf16(3.0f);
      testing::call(call.args(), options);
      EXPECT_EQ(call.lse, (std::vector<float>{0, 0, 0, 0, 6})) << "channel " << channel;
    }
  });
}

// One key has weight 1: the output is its value, rotated back.
TEST(Fusion, OutputRotationIsTheConjugate) {
  with_every_kernel([](const PlanOptions& options) {
    OneKey call(2);
    for (const int32_t position : {0, 1, 77}) {
      call.position = position;
      for (int64_t pair = 0; pair < 32; ++pair) {
        for (const int64_t odd : {0, 1}) {
          const int64_t channel = kRope + 2 * pair + odd;
          std::fill(call.kv.begin(), call.kv.end(), uint16_t{0});
          call.kv[static_cast<size_t>(channel)] = bf16(1.0f);
          testing::call(call.args(), options);
          std::vector<float> expected(kD, 0.0f);
          expected[static_cast<size_t>(kRope + 2 * pair)] = odd == 0 ? call.cos(pair) : call.sin(pair);
          expected[static_cast<size_t>(kRope + 2 * pair + 1)] = odd == 0 ? -call.sin(pair) : call.cos(pair);
          for (int64_t c = 0; c < kD; ++c) {
            const float want = expected[static_cast<size_t>(c)];
            ASSERT_EQ(f32(call.out[static_cast<size_t>(kD + c)]), f32(bf16(want)))
                << "pair " << pair << ", channel " << c;
            ASSERT_NEAR(call.cast_value(1, c), want, std::fabs(want) / 16 + 1e-9)
                << "pair " << pair << ", channel " << c;
          }
        }
      }
    }
  });
}

TEST(Fusion, CastFollowsItsRules) {
  with_every_kernel([](const PlanOptions& options) {
    OneKey call(2);  // position 0 turns nothing
    call.kv[0] = bf16(448.0f);
    call.kv[1] = bf16(-17.0f);   // between the codes for 16 and 18: to even
    call.kv[32] = bf16(449.0f);  // rounds to 448 in bf16
    call.kv[64] = bf16(450.0f);
    call.kv[96] = bf16(1e-6f);
    testing::call(call.args(), options);
    for (const int64_t head : {0, 1}) {
      EXPECT_EQ(call.exponent(head, 0), 127);
      EXPECT_EQ(call.cast_value(head, 0), 448.0f);
      EXPECT_EQ(call.cast_value(head, 1), -16.0f);
      EXPECT_EQ(call.exponent(head, 32), 127);
      EXPECT_EQ(call.exponent(head, 64), 128);  // above 448
      EXPECT_EQ(call.cast_value(head, 64), 448.0f);
      EXPECT_EQ(call.exponent(head, 96), 105);  // the floor: 1e-4 / 448 up to a power of two
      EXPECT_EQ(call.exponent(head, 128), 105);
    }
    EXPECT_EQ(call.zero_codes(), 2 * (kD - 5));
  });
}

TEST(Fusion, NanIsCodedAsOneAndLonelyRowsAsZeros) {
  with_every_kernel([](const PlanOptions& options) {
    OneKey call(2);
    call.position = 9;
    call.kv[3] = bf16(std::numeric_limits<float>::quiet_NaN());
    testing::call(call.args(), options);
    for (const int64_t head : {0, 1}) EXPECT_EQ(call.code(head, 3), 0x7F);
    EXPECT_TRUE(std::isnan(call.lse[0]));

    call.index = -1;
    testing::call(call.args(), options);
    EXPECT_EQ(call.zero_codes(), 2 * kD);
    EXPECT_EQ(call.scales, std::vector<int32_t>(call.scales.size(), 0x69696969));
    EXPECT_EQ(call.out, std::vector<uint16_t>(call.out.size(), 0));
    EXPECT_EQ(call.lse, std::vector<float>(2, std::numeric_limits<float>::infinity()));
  });
}

// The chain of steps --------------------------------------------------------------------------------

// Norm, rotation, attention and rotation back as separate steps, a head at a time: what out_bf16 must be
// close to.
struct Chain {
  std::vector<float> out;  // [s_q, h_q, 512]
  std::vector<float> lse;  // [s_q, h_q]
};

Chain chain_of(const CaseData& data, const PlanOptions& options) {
  const auto fused = std::get<FusedPrefillArgs>(data.args());
  const int64_t heads = data.what().h_q;
  Chain chain;
  for (int64_t s = 0; s < data.what().s_q; ++s) {
    const uint16_t* token = fused.q.data_as<uint16_t>() + s * fused.q.stride(0);
    const int64_t position =
        std::clamp<int64_t>(fused.token_positions.data_as<int32_t>()[s], 0, cases::kMaxPositions - 1);
    const float* angles = fused.cos_sin_cache.data_as<float>() + position * fused.cos_sin_cache.stride(0);
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<uint16_t> q(kD);
      double squares = 0;
      for (int64_t c = 0; c < kD; ++c) {
        q[static_cast<size_t>(c)] = token[q_place(h, c, heads)];
        squares += std::pow(f32(q[static_cast<size_t>(c)]), 2);
      }
      for (size_t i = 0; i < 32; ++i) {
        const float x0 = f32(q[kRope + 2 * i]);
        const float x1 = f32(q[kRope + 2 * i + 1]);
        q[kRope + 2 * i] = bf16(std::fma(x0, angles[i], -(x1 * angles[32 + i])));
        q[kRope + 2 * i + 1] = bf16(std::fma(x0, angles[32 + i], x1 * angles[i]));
      }
      std::vector<uint16_t> out(kD);
      float lse = 0;
      SparsePrefillFwdArgs a;
      a.q = {q.data(), DType::kBF16, {1, 1, kD}};
      a.kv = fused.kv;
      a.indices = {fused.indices.data_as<int32_t>() + s * fused.indices.stride(0),
                   DType::kInt32,
                   {1, 1, data.what().main.width}};
      a.softmax_scale = fused.softmax_scale;
      if (fused.q_norm_eps)
        a.softmax_scale /= static_cast<float>(std::sqrt(squares / kD + *fused.q_norm_eps));
      a.out = {out.data(), DType::kBF16, {1, 1, kD}};
      a.lse = {&lse, DType::kFP32, {1, 1}};
      testing::call(a, options);
      std::vector<float> row(kD);
      for (size_t c = 0; c < kD; ++c) row[c] = f32(out[c]);
      for (size_t i = 0; i < 32; ++i) {
        const float x0 = row[kRope + 2 * i];
        const float x1 = row[kRope + 2 * i + 1];
        row[kRope + 2 * i] = x0 * angles[i] + x1 * angles[32 + i];
        row[kRope + 2 * i + 1] = x1 * angles[i] - x0 * angles[32 + i];
      }
      chain.out.insert(chain.out.end(), row.begin(), row.end());
      chain.lse.push_back(lse);
    }
  }
  return chain;
}

Case chain_case(std::optional<float> eps) {
  Case c;
  c.op = Op::kFusedPrefill;
  c.s_q = 3;
  c.h_q = 6;
  c.n_groups = 2;
  c.main = {.width = 150};
  c.q_norm_eps = eps;
  c.q_scale = eps ? 3.0f : 1.0f;
  c.store = cases::FusedStore::kBoth;
  return c;
}

TEST(Fusion, EqualsTheChainOfSteps) {
  for (const std::optional<float> eps :
       {std::optional<float>{}, std::optional<float>{1e-6f}, std::optional<float>{2.0f}}) {
    const CaseData data = cases::make(chain_case(eps));
    with_every_kernel([&](const PlanOptions& options) {
      const auto args = std::get<FusedPrefillArgs>(data.args());
      testing::call(args, options);
      const Chain chain = chain_of(data, options);
      const auto* out = args.out_bf16.data_as<uint16_t>();
      for (size_t row = 0; row < chain.lse.size(); ++row) {
        EXPECT_NEAR(args.lse.data_as<float>()[row], chain.lse[row], 1e-4);
        float largest = 0;
        for (size_t c = 0; c < kD; ++c) largest = std::max(largest, std::fabs(chain.out[row * kD + c]));
        for (size_t c = 0; c < kD; ++c) {
          // Both sides round once to bf16 (8 bits), at most at the row's largest magnitude.
          ASSERT_NEAR(f32(out[row * kD + c]), chain.out[row * kD + c], largest / 128)
              << "row " << row << ", channel " << c;
        }
      }
    });
  }
}

// Outputs of several calls in one buffer --------------------------------------------------------------

// A call's tokens [first, first + n) as a call of their own, into the ranges of the whole call's outputs.
TensorView tokens_of(const TensorView& whole, int64_t first, int64_t n) {
  std::vector<int64_t> shape(whole.shape().begin(), whole.shape().end());
  shape[0] = n;
  return {whole.data_as<uint8_t>() + first * whole.stride(0) * size_of(whole.dtype()), whole.dtype(), shape,
          whole.strides()};
}

template <class T>
T part_of(const T& whole, int64_t first, int64_t n) {
  T part = whole;
  for (TensorView T::* field :
       {static_cast<TensorView T::*>(&T::q), static_cast<TensorView T::*>(&T::token_positions),
        static_cast<TensorView T::*>(&T::indices), static_cast<TensorView T::*>(&T::topk_length),
        static_cast<TensorView T::*>(&T::out_fp8), static_cast<TensorView T::*>(&T::out_sf),
        static_cast<TensorView T::*>(&T::lse)}) {
    if (part.*field) part.*field = tokens_of(whole.*field, first, n);
  }
  if constexpr (std::is_same_v<T, FusedDecodeArgs>) {
    part.extra_indices = tokens_of(whole.extra_indices, first, n);
  } else {
    part.max_logits = tokens_of(whole.max_logits, first, n);
  }
  return part;
}

Case shared_case(Op op) {
  Case c;
  c.op = op;
  c.s_q = 7;
  c.h_q = 12;
  c.n_groups = 3;
  c.q_norm_eps = 1e-6f;
  c.main.width = 70;
  c.main.lengths = cases::Lengths::kVaried;
  c.layout = cases::Layout::kViews;
  if (op == Op::kFusedDecode) {
    c.main.record = Record::kV41Fp8;
    c.extra = cases::CacheCase{.record = Record::kV41Fp4, .width = 33};
  }
  return c;
}

// The bytes of an output's whole memory, gaps and margins included.
std::vector<uint8_t> memory_of(const cases::Operand& o) {
  std::vector<uint8_t> bytes(static_cast<size_t>(o.memory.whole_bytes()));
  o.memory.whole([&](const uint8_t* p) { std::copy_n(p, bytes.size(), bytes.begin()); });
  return bytes;
}

template <class T>
void expect_disjoint_ranges(Op op) {
  CaseData data = cases::make(shared_case(op));
  const T whole = std::get<T>(data.args());
  with_every_kernel([&](const PlanOptions& options) {
    data.reset_outputs();
    testing::call(whole, options);
    const auto all_bits = data.output_bits();
    const auto out_fp8 = memory_of(data.operand("out_fp8"));
    const auto out_sf = memory_of(data.operand("out_sf"));

    for (const int64_t cut : {1, 3, 4}) {
      data.reset_outputs();
      testing::call(part_of(whole, cut, 7 - cut), options);
      // The first tokens are as they were before.
      for (int64_t s = 0; s < cut; ++s) {
        for (const char* name : {"out_fp8", "out_sf"}) {
          CaseData fresh = data;
          fresh.reset_outputs();
          EXPECT_EQ(cases::contents(tokens_of(data.view(name), s, 1)),
                    cases::contents(tokens_of(fresh.view(name), s, 1)))
              << name << " of token " << s;
        }
      }
      testing::call(part_of(whole, 0, cut), options);
      EXPECT_TRUE(data.output_bits() == all_bits) << "cut at " << cut;
      EXPECT_TRUE(memory_of(data.operand("out_fp8")) == out_fp8) << "cut at " << cut;
      EXPECT_TRUE(memory_of(data.operand("out_sf")) == out_sf) << "cut at " << cut;
      EXPECT_EQ(data.disturbed_output(), "");
    }
  });
}

TEST(Fusion, PrefillsShareOneOutputPair) { expect_disjoint_ranges<FusedPrefillArgs>(Op::kFusedPrefill); }
TEST(Fusion, DecodesShareOneOutputPair) { expect_disjoint_ranges<FusedDecodeArgs>(Op::kFusedDecode); }

// Split mode ------------------------------------------------------------------------------------------

TEST(Fusion, MergedPartialsAgreeWithTheOracleOfTheWholeCall) {
  Case c = shared_case(Op::kFusedDecode);
  c.sink = cases::Sink::kExtreme;
  CaseData data = cases::make(c);
  const auto whole = std::get<FusedDecodeArgs>(data.args());
  const cases::Truth truth = cases::truth_of(data);
  for (const int64_t splits : {1, 2, 5}) {
    with_every_kernel([&](const PlanOptions& options) {
      std::vector<float> o(static_cast<size_t>(splits * c.s_q * c.h_q * kD), std::nanf(""));
      std::vector<float> lse(static_cast<size_t>(splits * c.s_q * c.h_q), std::nanf(""));
      FusedDecodePartialsArgs partials;
      static_cast<FusedCommon&>(partials) = whole;
      static_cast<FusedDecodeCaches&>(partials) = whole;
      partials.num_splits = splits;
      partials.o_accum = {o.data(), DType::kFP32, {splits, c.s_q, c.h_q, kD}};
      partials.lse_accum = {lse.data(), DType::kFP32, {splits, c.s_q, c.h_q}};
      testing::call(partials, options);

      data.reset_outputs();
      CombinePartialsFusedArgs merge;
      merge.out_partials = partials.o_accum;
      merge.lse_partials = partials.lse_accum;
      merge.attn_sink = whole.attn_sink;
      merge.base2 = true;
      merge.n_groups = whole.n_groups;
      merge.out_fp8 = whole.out_fp8;
      merge.out_sf = whole.out_sf;
      merge.lse = whole.lse;
      testing::call(merge, {.kernel = {}, .threads = 1});  // merges have kernels of their own
      for (const cases::Judgement& j : cases::judge(data, truth)) {
        EXPECT_TRUE(j.comparison.ok) << splits << " splits, " << j.output << ": " << j.comparison.where;
      }
    });
  }
}

}  // namespace
}  // namespace tilewise
