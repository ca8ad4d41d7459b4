// sparse_prefill_bwd through every kernel, forced by name, against the oracle's gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/support/sparse_backward_call.h"

namespace tilewise {
namespace {

using reference::Arithmetic;
using testing::SparseBackwardCall;
using testing::SparseBackwardOptions;

/// One thread against the oracle; more give the same bits.
void expect_right_everywhere(SparseBackwardCall& call) {
  const reference::Gradients oracle = call.gradients(Arithmetic::kDouble);
  const reference::Gradients rounded = call.gradients(Arithmetic::kRounded);
  testing::for_every_kernel(call.args, [&](const std::string& kernel) {
    call.run(kernel, 1);
    call.expect_gradients(oracle, rounded);
    const auto bits = call.output_bits();
    for (const int threads : {2, 5}) {
      call.run(kernel, threads);
      EXPECT_TRUE(call.output_bits() == bits) << threads << " threads give other bits than one";
    }
  });
}

void expect_right_everywhere(const SparseBackwardOptions& options) {
  SCOPED_TRACE(to_string(options));
  SparseBackwardCall call(options);
  expect_right_everywhere(call);
}

bool smoke() {
  const char* set = std::getenv("TILEWISE_TEST_SET");
  return set != nullptr && std::string_view(set) == "smoke";
}

struct Sizes {
  int64_t heads;
  int64_t topk;
};

std::vector<Sizes> grid() {
  std::vector<Sizes> all;
  for (const int64_t heads : {1, 5, 16, 64, 65, 128}) {
    for (const int64_t topk : {0, 1, 63, 64, 133, 512}) {
      if (!smoke() || heads * topk <= 16 * 133) all.push_back({heads, topk});
    }
  }
  return all;
}

class SparseBackwardGrid : public ::testing::TestWithParam<Sizes> {};

TEST_P(SparseBackwardGrid, AgreesWithTheOracle) {
  const auto [heads, topk] = GetParam();
  SparseBackwardOptions options{.h_q = heads, .topk = topk};
  options.d = (heads + topk) % 2 == 0 ? 576 : 512;
  options.holes = heads % 4 != 0 || topk % 2 == 0;
  options.lengths = heads == 16 || topk == 133;
  options.sink = heads != 64;
  options.sink_type = heads == 5 ? DType::kBF16 : heads == 65 ? DType::kFP16 : DType::kFP32;
  options.strided = heads == 5 || topk == 63;
  expect_right_everywhere(options);
}

INSTANTIATE_TEST_SUITE_P(AllSizes, SparseBackwardGrid, ::testing::ValuesIn(grid()), [](const auto& test) {
  return "h" + std::to_string(test.param.heads) + "_topk" + std::to_string(test.param.topk);
});

TEST(SparseBackward, BothHeadSizesWithEveryOption) {
  for (const int64_t d : {576, 512}) {
    expect_right_everywhere(
        {.h_q = 20, .topk = 300, .d = d, .holes = true, .lengths = true, .sink = true, .strided = true});
  }
}

TEST(SparseBackward, MoreHeadsThanATileHas) {
  expect_right_everywhere({.s_q = 2, .h_q = 192, .s_kv = 300, .topk = 260});
  expect_right_everywhere({.s_q = 2, .h_q = 256, .s_kv = 40, .topk = 30, .sink = true});
}

TEST(SparseBackward, ManyQueriesSelectTheSameFewKeys) {
  expect_right_everywhere({.s_q = 96, .h_q = 8, .s_kv = 1000, .topk = 24, .rows_in_use = 30});
}

// Every row is listed many times by each token.
TEST(SparseBackward, Duplicates) {
  expect_right_everywhere({.s_q = 7, .h_q = 16, .s_kv = 64, .topk = 300, .rows_in_use = 3});
}

// Lists that move through the rows, in both directions: tokens wait for others at different places.
TEST(SparseBackward, ListsThatOverlapInPart) {
  for (const int64_t step : {100, -100}) {
    SparseBackwardCall call({.s_q = 12, .h_q = 4, .s_kv = 2000, .topk = 520});
    for (int64_t t = 0; t < 12; ++t) {
      for (int64_t i = 0; i < 520; ++i) {
        call.list(t)[i] = static_cast<int32_t>((step > 0 ? t : 11 - t) * 100 + (i * 7) % 520);
      }
    }
    call.run_forward();
    expect_right_everywhere(call);
  }
}

// A short token ends long before the one two places ahead, and the token between them adds nothing: the
// row that they share must wait all the same.
TEST(SparseBackward, ShortTokensBehindLongOnes) {
  SparseBackwardCall call({.s_q = 15, .h_q = 4, .s_kv = 600, .topk = 512});
  for (int64_t t = 0; t < 15; ++t) {
    for (int64_t i = 0; i < 512; ++i) {
      const int64_t rows[] = {i, -1, i == 0 ? 511 : -1};
      call.list(t)[i] = static_cast<int32_t>(rows[t % 3]);
    }
  }
  call.run_forward();
  expect_right_everywhere(call);
}

TEST(SparseBackward, LargeLogits) {
  for (const float logit : {-150.0f, -120.0f, 200.0f, -2.45e5f}) {
    expect_right_everywhere({.h_q = 16, .s_kv = 200, .topk = 65, .logit = logit});
  }
}

TEST(SparseBackward, InfiniteSinks) {
  SparseBackwardCall call({.h_q = 5, .s_kv = 100, .topk = 70, .holes = true, .lengths = true, .sink = true});
  call.set_sink(1, HUGE_VALF);
  call.set_sink(3, -HUGE_VALF);
  call.run_forward();
  expect_right_everywhere(call);
}

TEST(SparseBackward, NothingToDo) {
  expect_right_everywhere({.s_q = 0, .h_q = 3, .s_kv = 5, .topk = 4, .sink = true});
  expect_right_everywhere({.s_q = 3, .h_q = 3, .s_kv = 0, .topk = 0, .sink = true});
  SparseBackwardCall no_keys({.s_q = 3, .h_q = 3, .s_kv = 5, .topk = 4, .sink = true});
  for (int64_t t = 0; t < 3; ++t) std::fill_n(no_keys.list(t), 4, t == 1 ? 5 : -1);
  no_keys.run_forward();
  expect_right_everywhere(no_keys);
}

TEST(SparseBackward, NanInASelectedRow) {
  SparseBackwardCall call({.s_q = 3, .h_q = 3, .s_kv = 50, .topk = 10, .rows_in_use = 49});
  call.list(1)[3] = 49;
  call.key(49)[100] = 0x7FC0;
  call.run_forward();
  ASSERT_TRUE(std::isnan(call.args.lse.data_as<float>()[3]));
  expect_right_everywhere(call);
}

}  // namespace
}  // namespace tilewise
