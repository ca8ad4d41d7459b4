// Invariant 12: a fused operator equals the chain of steps that it fuses, in parts and as a whole.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr int64_t kChannels = 512;
constexpr int64_t kFirstTurned = 448;

struct Angles {
  const float* cos;
  const float* sin;
};

Angles angles_of(const FusedCommon& args, int64_t token) {
  const int64_t position =
      std::clamp<int64_t>(args.token_positions.data_as<int32_t>()[token], 0, args.cos_sin_cache.size(0) - 1);
  const float* row = args.cos_sin_cache.data_as<float>() + position * args.cos_sin_cache.stride(0);
  return {row, row + 32};
}

// Steps 1 and 2: a head's query, turned, and the factor that the norm puts into the scores' scale.
struct Query {
  std::array<uint16_t, kChannels> q;
  float scale;
};

Query query_of(const FusedCommon& args, int64_t token, int64_t head) {
  Query query{};
  const auto* from = args.q.data_as<uint16_t>() + token * args.q.stride(0);
  double squares = 0;
  for (int64_t c = 0; c < kChannels; ++c) {
    query.q[static_cast<size_t>(c)] = from[c / 16 * args.q.size(1) * 16 + head * 16 + c % 16];
    squares += std::pow(bf16_bits_to_f32(query.q[static_cast<size_t>(c)]), 2);
  }
  query.scale = args.softmax_scale;
  if (args.q_norm_eps) query.scale /= static_cast<float>(std::sqrt(squares / kChannels + *args.q_norm_eps));
  const Angles angles = angles_of(args, token);
  for (size_t i = 0; i < 32; ++i) {
    uint16_t* pair = query.q.data() + kFirstTurned + 2 * i;
    const float x0 = bf16_bits_to_f32(pair[0]);
    const float x1 = bf16_bits_to_f32(pair[1]);
    pair[0] = f32_to_bf16_bits(std::fma(x0, angles.cos[i], -(x1 * angles.sin[i])));
    pair[1] = f32_to_bf16_bits(std::fma(x0, angles.sin[i], x1 * angles.cos[i]));
  }
  return query;
}

// What step 3 gives for one token and head.
struct Attended {
  std::array<uint16_t, kChannels> out{};
  float lse = 0;
  float max_logit = -HUGE_VALF;  // of prefills alone
};

TensorView of_head(const TensorView& sink, int64_t head) { return sink ? narrowed(sink, 0, head) : sink; }

TensorView of_row(const TensorView& view, int64_t token) { return view ? narrowed(view, 0, token) : view; }

// [s_q, width] of a token as [1, 1, width].
TensorView list_of(const TensorView& view, int64_t token) {
  if (!view) return view;
  return {narrowed(view, 0, token).data(), DType::kInt32, {1, 1, view.size(1)}};
}

Attended attend(const FusedPrefillArgs& fused, int64_t token, int64_t head, const PlanOptions& options) {
  const Query query = query_of(fused, token, head);
  Attended result;
  SparsePrefillFwdArgs a;
  a.q = {query.q.data(), DType::kBF16, {1, 1, kChannels}};
  a.kv = fused.kv;
  a.indices = narrowed(fused.indices, 0, token);
  a.softmax_scale = query.scale;
  a.topk_length = of_row(fused.topk_length, token);
  a.attn_sink = of_head(fused.attn_sink, head);
  a.out = {result.out.data(), DType::kBF16, {1, 1, kChannels}};
  a.lse = {&result.lse, DType::kFP32, {1, 1}};
  a.max_logits = {&result.max_logit, DType::kFP32, {1, 1}};
  call(a, options);
  return result;
}

Attended attend(const FusedDecodeArgs& fused, int64_t token, int64_t head, const PlanOptions& options) {
  const Query query = query_of(fused, token, head);
  Attended result;
  SparseDecodeArgs a;
  a.q = {query.q.data(), DType::kBF16, {1, 1, 1, kChannels}};
  a.kv_cache = fused.kv_cache;
  a.indices = list_of(fused.indices, token);
  a.softmax_scale = query.scale;
  a.record = fused.record;
  a.topk_length = of_row(fused.topk_length, token);
  a.extra_cache = fused.extra_cache;
  a.extra_indices = list_of(fused.extra_indices, token);
  a.extra_topk_length = of_row(fused.extra_topk_length, token);
  a.extra_record = fused.extra_record;
  a.attn_sink = of_head(fused.attn_sink, head);
  a.out = {result.out.data(), DType::kBF16, {1, 1, 1, kChannels}};
  a.lse = {&result.lse, DType::kFP32, {1, 1, 1}};
  call(a, options);
  return result;
}

// Steps 1 to 4 one after another, in the place of the oracle's exact answer.
template <class Args>
reference::AttentionResult chain_of(const Args& fused, const std::string& kernel) {
  PlanOptions options;
  options.kernel = kernel;
  reference::AttentionResult chain;
  chain.s_q = fused.q.size(0);
  chain.h_q = fused.q.size(1);
  chain.d_v = kChannels;
  for (int64_t token = 0; token < chain.s_q; ++token) {
    const Angles angles = angles_of(fused, token);
    for (int64_t head = 0; head < chain.h_q; ++head) {
      const Attended row = attend(fused, token, head, options);
      std::array<double, kChannels> out{};
      std::transform(row.out.begin(), row.out.end(), out.begin(), bf16_bits_to_f32);
      for (size_t i = 0; i < 32; ++i) {
        double* pair = out.data() + kFirstTurned + 2 * i;
        const double x0 = pair[0];
        const double x1 = pair[1];
        pair[0] = x0 * angles.cos[i] + x1 * angles.sin[i];
        pair[1] = x1 * angles.cos[i] - x0 * angles.sin[i];
      }
      chain.out.insert(chain.out.end(), out.begin(), out.end());
      chain.lse.push_back(row.lse);
      chain.max_logits.push_back(row.max_logit);
    }
  }
  return chain;
}

class FusedOperators : public OfOperator {};

TEST_P(FusedOperators, EqualTheChainOfSteps) {
  for (const Case& c : small_cases(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    // The bound is that of all comparisons: how far the chain is from the formula in a good kernel's
    // precision.
    cases::Truth truth = cases::truth_of(data);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      if (GetParam() == Op::kFusedPrefill) {
        truth.exact = chain_of(std::get<FusedPrefillArgs>(data.args()), kernel);
      } else {
        truth.exact = chain_of(std::get<FusedDecodeArgs>(data.args()), kernel);
      }
      bits_of(data, kernel);
      EXPECT_TRUE(agrees(data, truth));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, FusedOperators, ::testing::Values(Op::kFusedPrefill, Op::kFusedDecode),
                         operator_name);

// The partial results of a fused_decode in their own memory, and their merge into its outputs.
class Split {
 public:
  Split(const FusedDecodeArgs& whole, int64_t splits) : whole_(whole) {
    const int64_t tokens = whole.q.size(0);
    const int64_t heads = whole.q.size(1);
    o_.assign(static_cast<size_t>(splits * tokens * heads * kChannels), std::nanf(""));
    lse_.assign(static_cast<size_t>(splits * tokens * heads), std::nanf(""));
    static_cast<FusedCommon&>(partials_) = whole;
    static_cast<FusedDecodeCaches&>(partials_) = whole;
    partials_.num_splits = splits;
    partials_.o_accum = {o_.data(), DType::kFP32, {splits, tokens, heads, kChannels}};
    partials_.lse_accum = {lse_.data(), DType::kFP32, {splits, tokens, heads}};
  }

  void write(const std::string& kernel) { run_kernel(partials_, kernel); }

  void merge(const std::string& kernel) {
    CombinePartialsFusedArgs merge;
    merge.out_partials = partials_.o_accum;
    merge.lse_partials = partials_.lse_accum;
    merge.attn_sink = whole_.attn_sink;
    merge.base2 = true;
    merge.n_groups = whole_.n_groups;
    merge.out_fp8 = whole_.out_fp8;
    merge.out_sf = whole_.out_sf;
    merge.lse = whole_.lse;
    run_kernel(merge, kernel);
  }

 private:
  FusedDecodeArgs whole_;
  FusedDecodePartialsArgs partials_;
  std::vector<float> o_;
  std::vector<float> lse_;
};

TEST(SplitDecode, MergedEqualsTheWhole) {
  for (Case c : small_cases(Op::kFusedDecode)) {
    c.store = cases::FusedStore::kFp8;
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    const cases::Truth truth = cases::truth_of(data);
    for (const int64_t splits : {1, 2, 3, 5, 40}) {
      Split split(std::get<FusedDecodeArgs>(data.args()), splits);
      for_every_kernel(data.args(), [&](const std::string& kernel) {
        data.reset_outputs();
        const Bits untouched = data.output_bits();
        split.write(kernel);
        EXPECT_TRUE(same_bits(untouched, data.output_bits())) << "partial results have outputs of their own";
        split.merge(testing::is_bf16_kernel(kernel) ? "cpu_avx512" : kernel);  // merges multiply no tiles
        EXPECT_TRUE(agrees(data, truth)) << splits << " splits";
      });
    }
  }
}

constexpr int64_t kTokens = 7;

Case sharing_case(Op op) {
  Case c;
  c.op = op;
  c.s_q = kTokens;
  c.h_q = 12;
  c.n_groups = 3;
  c.layout = cases::Layout::kViews;
  c.main = {.record = op == Op::kFusedPrefill ? Record::kBf16 : Record::kV41Fp8, .width = 70};
  if (op == Op::kFusedDecode) c.extra = cases::CacheCase{.record = Record::kV41Fp4, .width = 33};
  return c;
}

// Tokens [first, first + count) of a call, as a call of their own that writes to the outputs of `to`.
cases::Args part_of(const CaseData& whole, const CaseData& to, int64_t first, int64_t count) {
  CaseData part = whole;
  for (cases::Operand& o : part.operands()) {
    const TensorView view =
        o.role == cases::Role::kInput || !to.has(o.name) ? whole.view(o.name) : to.view(o.name);
    o.view = narrowed(view, token_dims(whole.what().op, o.name).token, first, count);
  }
  // Inputs are still those of `whole`, which outlives the call.
  return part.args();
}

TEST(SharedOutputs, APrefillAndADecodeWriteDisjointTokens) {
  CaseData prefill = cases::make(sharing_case(Op::kFusedPrefill));
  CaseData decode = cases::make(sharing_case(Op::kFusedDecode));
  CaseData shared = cases::make(sharing_case(Op::kFusedPrefill));
  const auto bits = [](const CaseData& data, const char* name, int64_t token) {
    return cases::contents(narrowed(data.view(name), 0, token));
  };
  for_every_kernel(prefill.args(), [&](const std::string& kernel) {
    bits_of(prefill, kernel);
    bits_of(decode, kernel);
    for (const int64_t cut : {1, 4, 6}) {
      CaseData fresh = shared;
      shared.reset_outputs();
      fresh.reset_outputs();
      run_kernel(part_of(decode, shared, cut, kTokens - cut), kernel);
      for (const char* name : {"out_fp8", "out_sf"}) {
        for (int64_t t = 0; t < cut; ++t) EXPECT_TRUE(bits(shared, name, t) == bits(fresh, name, t));
      }
      run_kernel(part_of(prefill, shared, 0, cut), kernel);
      for (const char* name : {"out_fp8", "out_sf"}) {
        for (int64_t t = 0; t < kTokens; ++t) {
          EXPECT_TRUE(bits(shared, name, t) == bits(t < cut ? prefill : decode, name, t))
              << name << " of token " << t;
        }
      }
      EXPECT_EQ(shared.disturbed_output(), "");
    }
  });
}

}  // namespace
}  // namespace tilewise::testing
