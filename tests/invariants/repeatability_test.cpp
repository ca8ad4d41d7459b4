// Invariant 10: the same call gives the same bits, on any number of threads, and a row's bits do not depend
// on the rows beside it.
#include <algorithm>
#include <string>
#include <vector>

#include "cases/data.h"
#include "cases/random.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;

std::vector<Case> cases_of(Op op) {
  std::vector<Case> list = small_cases(op);
  for (const Case& c : long_cases(op)) list.push_back(c);
  for (const Case& c : batch_invariant(long_cases(op))) {
    if (c.batch_invariant) list.push_back(c);
  }
  return list;
}

class Repeatability : public OfOperator {};

TEST_P(Repeatability, ThreadsAndRepeatedRunsChangeNoBit) {
  for (const Case& c : cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      const Bits expected = bits_of(data, kernel, 1);
      for (const int threads : {2, 3, 7}) {
        for (int repeat = 0; repeat < 2; ++repeat) {
          EXPECT_TRUE(same_bits(expected, bits_of(data, kernel, threads))) << threads << " threads";
        }
      }
    });
  }
}

// One plan, one workspace and one set of outputs, call after call: what a call leaves behind must not matter.
TEST_P(Repeatability, BackToBackCalls) {
  for (const Case& c : cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    const cases::Args args = data.args();
    for_every_kernel(args, [&](const std::string& kernel) {
      const Bits expected = bits_of(data, kernel);
      PlanOptions options;
      options.kernel = kernel;
      options.threads = 2;
      const Plan plan = cases::plan_case(args, device(), options);
      const OwnedWorkspace workspace(plan.workspace_bytes());
      for (int repeat = 0; repeat < 4; ++repeat) cases::run_case(plan, args, workspace);
      EXPECT_TRUE(same_bits(expected, data.output_bits()));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Repeatability,
                         ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

std::vector<Case> invariant_cases_of(Op op) {
  std::vector<Case> list = batch_invariant(small_cases(op));
  for (const Case& c : batch_invariant(long_cases(op))) list.push_back(c);
  return list;
}

class BatchInvariance : public OfOperator {};

TEST_P(BatchInvariance, ARowAloneEqualsTheRowInABatch) {
  for (const Case& c : invariant_cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData batch = cases::make(c);
    for_every_kernel(batch.args(), [&](const std::string& kernel) {
      bits_of(batch, kernel);
      for (const Token t : all_tokens(c)) {
        // dense_decode: a request's tokens stay together.
        if (cases::is_dense(c.op) && t.token > 0) continue;
        CaseData one = alone(batch, t);
        bits_of(one, kernel);
        for (int64_t s = 0; s < (cases::is_dense(c.op) ? c.s_q : 1); ++s) {
          EXPECT_TRUE(same_bits(token_bits(batch, {t.request, t.token + s}), token_bits(one, {0, s})));
        }
      }
    });
  }
}

// Other lengths and other keys for everybody but one request (or token).
void change_neighbours(CaseData& data, Token kept, uint64_t seed) {
  const Op op = data.what().op;
  const cases::Stream64 random{seed};
  uint64_t draws = 0;
  for (const char* name : {"topk_length", "extra_topk_length", "cache_seqlens", "indices", "extra_indices"}) {
    if (!data.has(name)) continue;
    for (const Token t : all_tokens(data.what())) {
      const bool by_request = op == Op::kDenseDecode || op == Op::kSparseDecode;
      if (by_request ? t.request == kept.request : t == kept) continue;
      cases::for_each_run(of_token(op, name, data.view(name), t), [&](uint8_t* run, int64_t n) {
        for (int64_t i = 0; i < n; i += 4) {
          const auto value = static_cast<int32_t>(random.below(draws++, 2 * data.what().main.width));
          std::memcpy(run + i, &value, 4);
        }
      });
    }
  }
}

TEST_P(BatchInvariance, NeighboursLengthsChangeNoBit) {
  for (Case c : invariant_cases_of(GetParam())) {
    c.main.lengths = cases::Lengths::kVaried;
    if (c.op == Op::kDenseDecode || c.op == Op::kSparseDecode) c.batch = 3;
    SCOPED_TRACE(name(c));
    CaseData data = cases::make(c);
    for_every_kernel(data.args(), [&](const std::string& kernel) {
      bits_of(data, kernel);
      for (const Token t : all_tokens(c)) {
        CaseData other = data;
        change_neighbours(other, t, 11 + static_cast<uint64_t>(t.token));
        ASSERT_NE(other.inputs_fingerprint(), data.inputs_fingerprint());
        bits_of(other, kernel);
        EXPECT_TRUE(same_bits(token_bits(data, t), token_bits(other, t)));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, BatchInvariance, ::testing::ValuesIn(ops_where(cases::is_attention)),
                         operator_name);

// Query i of s_q sees the keys of a request that ends s_q - 1 - i keys earlier: alone there it has the same
// keys.
TEST(DensePacking, ACausalQueryAloneHasTheSameBits) {
  for (const int64_t keys : {7, 128, 150, 1025, 2300}) {
    for (Case c : batch_invariant(small_dense_cases())) {
      if (!c.causal) continue;
      c.batch = 1;
      c.s_q = 5;
      c.main.width = keys;
      c.main.lengths = cases::Lengths::kNone;
      SCOPED_TRACE(name(c));
      CaseData together = cases::make(c);
      for_every_kernel(together.args(), [&](const std::string& kernel) {
        bits_of(together, kernel);
        for (int64_t s = 0; s < c.s_q; ++s) {
          CaseData one = together;
          one.operand("q").view = narrowed(one.view("q"), 1, s);
          for (const char* output : {"out", "lse"}) {
            const TensorView view = one.view(output);
            std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
            shape[static_cast<size_t>(token_dims(c.op, output).token)] = 1;
            replace(one, output, view.dtype(), shape);
          }
          *one.view("cache_seqlens").data_as<int32_t>() = static_cast<int32_t>(keys - (c.s_q - 1 - s));
          bits_of(one, kernel);
          EXPECT_TRUE(same_bits(token_bits(together, {0, s}), token_bits(one, {0, 0}))) << "query " << s;
        }
      });
    }
  }
}

}  // namespace
}  // namespace tilewise::testing
