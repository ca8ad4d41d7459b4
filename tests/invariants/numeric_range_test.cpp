// Invariant 5: logits far from 0 and lengths that fit no tile give finite results that agree with the oracle;
// NaN, infinities and the ends of the scales' ranges mean what the contract says.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/spoil.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kOffsets[] = {-2.45e5f, -150.0f, -120.0f, 0.0f, 200.0f};

void expect_finite(const CaseData& data) {
  for (const cases::Operand& o : data.operands()) {
    const DType type = o.view.dtype();
    if (o.role == cases::Role::kInput || type == DType::kInt32) continue;
    int64_t wrong = 0;
    cases::for_each_run(o.view, [&](const uint8_t* run, int64_t n) {
      for (int64_t i = 0; i < n; i += size_of(type)) wrong += std::isfinite(float_at(run + i, type)) ? 0 : 1;
    });
    EXPECT_EQ(wrong, 0) << o.name;
  }
}

void expect_finite_and_right(CaseData& data) {
  const cases::Truth truth = cases::truth_of(data);
  for_every_kernel(data.args(), [&](const std::string& kernel) {
    bits_of(data, kernel);
    EXPECT_TRUE(agrees(data, truth));
    // Empty splits of partial results have an lse of -inf.
    if (data.what().op != Op::kFusedDecodePartials) expect_finite(data);
  });
}

// A call whose tokens (of one request each, where there are requests) have keys of these lengths.
CaseData make_with_lengths(Op op, const std::vector<int32_t>& lengths, float offset) {
  Case c = small_cases(op)[0];
  const auto count = static_cast<int64_t>(lengths.size());
  const bool batched = op == Op::kDenseDecode || op == Op::kSparseDecode;
  c.batch = batched ? count : 1;
  c.s_q = batched ? 1 : count;
  c.h_q = 2;
  c.n_groups = 1;
  c.main.width = *std::max_element(lengths.begin(), lengths.end());
  c.main.rows = c.main.width;
  c.main.lengths = cases::Lengths::kVaried;
  c.extra.reset();
  c.holes = cases::Holes::kNone;
  c.sink = cases::Sink::kNone;
  c.logit_offset = offset;
  CaseData data = cases::make(c);
  const TensorView view = data.view(cases::is_dense(op) ? "cache_seqlens" : "topk_length");
  for (int64_t i = 0; i < count; ++i) view.data_as<int32_t>()[i] = lengths[static_cast<size_t>(i)];
  return data;
}

class NumericRange : public OfOperator {};

TEST_P(NumericRange, EveryLengthUpTo130AtEveryOffset) {
  std::vector<int32_t> lengths;
  for (int32_t n = 1; n <= 130; n += smoke() ? 7 : 1) lengths.push_back(n);
  for (const float offset : kOffsets) {
    CaseData data = make_with_lengths(GetParam(), lengths, offset);
    SCOPED_TRACE(name(data.what()));
    expect_finite_and_right(data);
  }
}

TEST_P(NumericRange, LengthsOf64Modulo128) {
  const std::vector<int32_t> lengths =
      smoke() ? std::vector<int32_t>{64, 192, 1088} : std::vector<int32_t>{64, 192, 320, 960, 1088, 2112};
  for (const float offset : {-2.45e5f, 200.0f}) {
    CaseData data = make_with_lengths(GetParam(), lengths, offset);
    SCOPED_TRACE(name(data.what()));
    expect_finite_and_right(data);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NumericRange, ::testing::ValuesIn(ops_where(cases::is_attention)),
                         operator_name);

class MergedRange : public OfOperator {};

TEST_P(MergedRange, PartialsAtEveryOffset) {
  for (Case c : small_cases(GetParam())) {
    c.holes = cases::Holes::kNone;
    for (const float offset : kOffsets) {
      c.logit_offset = offset;
      SCOPED_TRACE(name(c));
      CaseData data = cases::make(c);
      expect_finite_and_right(data);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MergedRange, ::testing::ValuesIn(ops_where(cases::is_combine)), operator_name);

// Plain bf16 rows that tests can write: column `channel` of the row in `slot`.
uint16_t& element(CaseData& data, const char* cache, int64_t slot, int64_t channel) {
  const TensorView view = data.view(cache);
  const int64_t page = view.rank() == 4 ? view.size(1) : 1;
  const int64_t inside = view.rank() == 4 ? slot % page * view.stride(1) : 0;
  return view.data_as<uint16_t>()[slot / page * view.stride(0) + inside + channel];
}

// A call on plain bf16 rows, 3 tokens, without a sink: token t has the keys 10t .. 10t + 9 and queries that
// are 1 in channel 0 and in the last one, so that the sign of a score with an infinite key is known.
struct PlainCall {
  CaseData data;
  const char* cache;

  explicit PlainCall(Op op) : data(cases::make(plain_case(op))), cache(cache_name(op)) {
    const TensorView lists = data.view("indices");
    const int64_t width = lists.size(lists.rank() - 1);
    for (int64_t i = 0; i < lists.numel(); ++i) {
      lists.data_as<int32_t>()[i] = static_cast<int32_t>(10 * (i / width) + i % width);
    }
    const TensorView q = data.view("q");
    const Case& c = data.what();
    if (cases::is_fused(op)) return;
    for (int64_t row = 0; row < q.numel() / c.d_qk; ++row) {
      q.data_as<uint16_t>()[row * c.d_qk] = f32_to_bf16_bits(1.0f);
      q.data_as<uint16_t>()[(row + 1) * c.d_qk - 1] = f32_to_bf16_bits(1.0f);
    }
  }

  static Case plain_case(Op op) {
    Case c;
    c.op = op;
    c.s_q = 3;
    c.h_q = 2;
    c.d_qk = cases::is_fused(op) ? 512 : 576;
    c.main = {.record = Record::kBf16, .page = 8, .width = 10, .rows = 40};
    c.num_splits = op == Op::kFusedDecodePartials ? 2 : 1;
    return c;
  }
  static const char* cache_name(Op op) {
    return op == Op::kSparsePrefillFwd || op == Op::kFusedPrefill ? "kv" : "kv_cache";
  }

  void set(int64_t slot, int64_t channel, float value) {
    element(data, cache, slot, channel) = f32_to_bf16_bits(value);
  }
  int64_t last_channel() const { return data.what().d_qk - 1; }
};

std::vector<float> floats_of(const CaseData& data, const char* name, Token t) {
  std::vector<float> values;
  const TensorView view = of_token(data.what().op, name, data.view(name), t);
  cases::for_each_run(view, [&](const uint8_t* run, int64_t n) {
    for (int64_t i = 0; i < n; i += size_of(view.dtype())) values.push_back(float_at(run + i, view.dtype()));
  });
  return values;
}

const auto kAllNan = ::testing::Each(::testing::Truly([](float x) { return std::isnan(x); }));

bool is_sparse(Op op) { return cases::is_attention(op) && !cases::is_dense(op); }
class SelectedValues : public OfOperator {};

// Token 1 selects the row; tokens 0 and 2 keep their bits.
TEST_P(SelectedValues, ANanBelongsToThoseWhoSelectIt) {
  PlainCall clean(GetParam());
  PlainCall spoiled(GetParam());
  spoiled.set(14, 3, std::nanf(""));
  const cases::Truth truth = cases::truth_of(spoiled.data);
  for_every_kernel(clean.data.args(), [&](const std::string& kernel) {
    bits_of(clean.data, kernel);
    bits_of(spoiled.data, kernel);
    for (const int64_t t : {0, 2}) {
      EXPECT_TRUE(same_bits(token_bits(clean.data, {0, t}), token_bits(spoiled.data, {0, t})));
    }
    for (const char* output : {"out", "out_fp8", "lse", "max_logits"}) {
      if (!spoiled.data.has(output)) continue;
      EXPECT_THAT(floats_of(spoiled.data, output, {0, 1}), kAllNan) << output;
    }
    EXPECT_TRUE(agrees(spoiled.data, truth));
  });
}

TEST_P(SelectedValues, ARowOfNanAloneIsNotLonely) {
  PlainCall call(GetParam());
  for (int64_t slot = 10; slot < 20; ++slot) {
    for (int64_t channel = 0; channel <= call.last_channel(); ++channel)
      call.set(slot, channel, std::nanf(""));
  }
  const cases::Truth truth = cases::truth_of(call.data);
  for_every_kernel(call.data.args(), [&](const std::string& kernel) {
    bits_of(call.data, kernel);
    for (const char* output : {"out", "out_fp8", "lse", "max_logits"}) {
      if (!call.data.has(output)) continue;
      EXPECT_THAT(floats_of(call.data, output, {0, 1}), kAllNan) << output;
    }
    EXPECT_TRUE(agrees(call.data, truth));
  });
}

INSTANTIATE_TEST_SUITE_P(All, SelectedValues, ::testing::ValuesIn(ops_where(is_sparse)), operator_name);

class InfiniteKeys : public OfOperator {};

TEST_P(InfiniteKeys, AScoreOfPlusInfinity) {
  PlainCall call(GetParam());
  call.set(14, call.last_channel(), kInf);
  const cases::Truth truth = cases::truth_of(call.data);
  for_every_kernel(call.data.args(), [&](const std::string& kernel) {
    bits_of(call.data, kernel);
    EXPECT_THAT(floats_of(call.data, "out", {0, 1}), kAllNan);
    EXPECT_THAT(floats_of(call.data, "lse", {0, 1}), kAllNan);
    if (call.data.has("max_logits")) {
      EXPECT_THAT(floats_of(call.data, "max_logits", {0, 1}), ::testing::Each(kInf));
    }
    EXPECT_TRUE(agrees(call.data, truth));
  });
}

// The last of 576 channels takes no part in values: a key whose score is -inf is as good as absent there.
TEST_P(InfiniteKeys, AScoreOfMinusInfinityHasNoWeight) {
  PlainCall call(GetParam());
  call.set(14, call.last_channel(), -kInf);
  PlainCall without(GetParam());
  without.data.view("indices").data_as<int32_t>()[14] = -1;
  const cases::Truth truth = cases::truth_of(without.data);
  for_every_kernel(call.data.args(), [&](const std::string& kernel) {
    bits_of(call.data, kernel);
    EXPECT_TRUE(agrees(call.data, truth));
  });
}

TEST_P(InfiniteKeys, ScoresOfMinusInfinityAloneAreLonely) {
  PlainCall call(GetParam());
  for (int64_t slot = 10; slot < 20; ++slot) call.set(slot, call.last_channel(), -kInf);
  const cases::Truth truth = cases::truth_of(call.data);
  for_every_kernel(call.data.args(), [&](const std::string& kernel) {
    bits_of(call.data, kernel);
    EXPECT_THAT(floats_of(call.data, "out", {0, 1}), ::testing::Each(0.0f));
    EXPECT_THAT(floats_of(call.data, "lse", {0, 1}), ::testing::Each(kInf));
    EXPECT_TRUE(agrees(call.data, truth));
  });
}

// 0 * inf: the value's channel is NaN for everybody who lists the key, the others are not.
TEST_P(InfiniteKeys, AnInfiniteValueWithoutWeight) {
  PlainCall call(GetParam());
  call.set(14, 0, -kInf);
  const cases::Truth truth = cases::truth_of(call.data);
  for_every_kernel(call.data.args(), [&](const std::string& kernel) {
    bits_of(call.data, kernel);
    EXPECT_TRUE(agrees(call.data, truth));
  });
}

INSTANTIATE_TEST_SUITE_P(All, InfiniteKeys, ::testing::Values(Op::kSparsePrefillFwd, Op::kSparseDecode),
                         operator_name);

// Values of bf16's subnormal range are kept, but by the kernels that multiply bf16, whose products take them
// for 0.
TEST(SubnormalValues, AreKept) {
  for (const Op op : ops_where(is_sparse)) {
    PlainCall call(op);
    for (int64_t slot = 0; slot < 40; ++slot) {
      for (int64_t channel = 0; channel <= call.last_channel(); ++channel) {
        element(call.data, call.cache, slot, channel) = static_cast<uint16_t>(1 + (slot * 7 + channel) % 127);
      }
    }
    SCOPED_TRACE(name(call.data.what()));
    const cases::Truth truth = cases::truth_of(call.data);
    for_every_kernel(call.data.args(), [&](const std::string& kernel) {
      bits_of(call.data, kernel);
      if (testing::is_bf16_kernel(kernel)) {
        if (call.data.has("out")) {
          EXPECT_THAT(floats_of(call.data, "out", {0, 0}), ::testing::Each(0.0f));
        }
        return;
      }
      EXPECT_TRUE(agrees(call.data, truth));
      if (!call.data.has("out")) return;
      EXPECT_THAT(floats_of(call.data, "out", {0, 0}), ::testing::Each(::testing::Gt(0.0f)));
    });
  }
}

// Writes one token of a cache: all codes the same, all scales the same.
void write_token(const CacheView& cache, int64_t slot, uint8_t code, uint32_t scale, uint16_t plain) {
  const formats::RecordSpec spec = formats::record_spec(cache.record, static_cast<int32_t>(cache.d));
  const auto row = [&](int32_t plane, int32_t offset) {
    return formats::plane_row(cache.block(slot), cache.page(), spec, plane, slot % cache.page()) + offset;
  };
  for (int32_t k = 0; k < spec.num_segments; ++k) {
    const formats::Segment& segment = spec.segments[k];
    uint8_t* p = row(segment.plane, segment.offset);
    for (int32_t i = 0; i < formats::segment_bytes(segment); ++i) {
      p[i] = segment.element == formats::Element::kBf16 ? static_cast<uint8_t>(plain >> (8 * (i % 2))) : code;
    }
  }
  for (int32_t s = 0; s < formats::num_scales(spec); ++s) {
    std::memcpy(row(spec.scales.plane, formats::scale_offset(spec.scales, s)), &scale,
                static_cast<size_t>(formats::scale_bytes(spec.scales.type)));
  }
}

struct ScaleEnd {
  const char* what;
  uint32_t fp32;
  uint8_t ue8m0;
  uint8_t e4m3;
  uint8_t code;  // for e4m3 and for pairs of e2m1 elements
};

// Queries of 0 give all keys the same weight, so the values alone decide.
constexpr ScaleEnd kScaleEnds[] = {
    {"zero", 0x00000000, 0, 0x00, 0x22},
    {"smallest", 0x00000001, 0, 0x01, 0x22},
    {"smallest normal", 0x00800000, 1, 0x08, 0x22},
    {"largest", 0x7E800000, 254, 0x7E, 0x11},
    {"NaN", 0x7FC00000, 255, 0x7F, 0x22},
};

TEST(ScaleEnds, MeanWhatTheRecordsSay) {
  for (const cases::RecordChoice& choice : cases::record_choices(Op::kSparseDecode)) {
    if (choice.main == Record::kBf16) continue;
    const bool in_extra = choice.extra.has_value();
    for (const ScaleEnd& end : kScaleEnds) {
      Case c;
      c.op = Op::kSparseDecode;
      c.s_q = 2;
      c.h_q = 2;
      c.d_qk = choice.d;
      c.main = {.record = choice.main, .page = 4, .width = 3, .rows = 16};
      if (in_extra) c.extra = cases::CacheCase{.record = *choice.extra, .page = 4, .width = 3, .rows = 16};
      SCOPED_TRACE(name(c) + ", scales: " + end.what);
      CaseData data = cases::make(c);
      const CacheView cache = cache_view(data, in_extra ? "extra_cache" : "kv_cache");
      const auto type = formats::record_spec(cache.record, static_cast<int32_t>(cache.d)).scales.type;
      const uint32_t scale = type == formats::ScaleType::kFp32    ? end.fp32
                             : type == formats::ScaleType::kUe8m0 ? end.ue8m0
                                                                  : end.e4m3;
      fill_elements(data.view("q"), Fill::kZeros);
      const int32_t slot = data.view(in_extra ? "extra_indices" : "indices").data_as<int32_t>()[1];
      write_token(cache, slot, end.code, scale, 0x0080);
      const cases::Truth truth = cases::truth_of(data);
      for_every_kernel(data.args(), [&](const std::string& kernel) {
        bits_of(data, kernel);
        EXPECT_TRUE(agrees(data, truth));
        if (end.ue8m0 != kUe8m0Nan) return;
        EXPECT_THAT(floats_of(data, "lse", {0, 0}), kAllNan);
      });
    }
  }
}

}  // namespace
}  // namespace tilewise::testing
