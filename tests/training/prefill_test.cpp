// dense_prefill and block_sparse_prefill, forward and backward, of every kernel against the oracle, and what
// must hold for their bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cases/training.h"
#include "core/numeric.h"
#include "cpu/phases.h"
#include "tests/support/kernels.h"

namespace tilewise::training {
namespace {

using namespace cases;

bool has_kernel_for(const std::string& kernel, const SequenceCase& c) {
  return !testing::is_bf16_kernel(kernel) || c.dtype != DType::kFP16;
}

PlanOptions with_threads(int threads) {
  PlanOptions options;
  options.threads = threads;
  return options;
}

void run_training(const SequenceArgs& args, const PlanOptions& options) {
  std::visit(
      [&]<class T>(const T& a) {
        const Plan planned = plan(a, Device::cpu(), options);
        EXPECT_EQ(planned.kernel(), options.kernel.empty() ? planned.kernel() : options.kernel);
        const OwnedWorkspace workspace(planned.workspace_bytes());
        // What a workspace holds must not matter.
        std::memset(static_cast<Workspace>(workspace).data, 0xFF, planned.workspace_bytes());
        run(planned, a, workspace);
      },
      args);
}

std::vector<uint8_t> bits_of(const SequenceArgs& args, const PlanOptions& options = {}) {
  SequenceData::fill_outputs(args, 0xFF);
  run_training(args, options);
  return SequenceData::outputs_of(args);
}

// Both directions of a case.
std::vector<SequenceArgs> calls_of(SequenceData& data) { return {data.forward(), data.backward()}; }

class EveryCase : public ::testing::TestWithParam<SequenceCase> {};

TEST_P(EveryCase, AgreesWithTheOracleOnEveryKernel) {
  SequenceData data(GetParam());
  for (const SequenceArgs& args : calls_of(data)) {
    const TrainingTruth truth = training_truth(args);
    for (const std::string& kernel : testing::kernels_of(Device::cpu(), true)) {
      if (!has_kernel_for(kernel, GetParam())) continue;
      SCOPED_TRACE(name(GetParam()) + " " + kernel);
      SequenceData::fill_outputs(args, 0xFF);
      run_training(args, {.kernel = kernel, .threads = 2});
      const reference::Comparison found = worst(judge_training(args, truth));
      EXPECT_TRUE(found.ok) << found.where << ", ratio " << found.worst_ratio;
    }
  }
}

TEST_P(EveryCase, HasTheSameBitsForAnyNumberOfThreads) {
  SequenceData data(GetParam());
  for (const SequenceArgs& args : calls_of(data)) {
    const std::vector<uint8_t> one = bits_of(args, with_threads(1));
    EXPECT_EQ(one, bits_of(args, with_threads(2))) << name(GetParam());
    EXPECT_EQ(one, bits_of(args, with_threads(5))) << name(GetParam());
  }
}

std::string test_name(const ::testing::TestParamInfo<SequenceCase>& info) {
  return std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(Prefill, EveryCase, ::testing::ValuesIn(sequence_cases()), test_name);

SequenceCase two_sequences() {
  SequenceCase c;
  c.lengths_q = {150, 200};
  c.lengths_k = {300, 200};
  c.h_q = 4;
  c.h_kv = 2;
  c.d_qk = 192;
  return c;
}

// The rows of one sequence, filled with the bytes of NaN.
void poison(const TensorView& rows, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    for (int64_t h = 0; h < rows.size(1); ++h) {
      std::memset(rows.data_as<uint16_t>() + i * rows.stride(0) + h * rows.stride(1), 0xFF,
                  static_cast<size_t>(rows.size(2)) * 2);
    }
  }
}

// The elements of rows [first, last) of one output tensor.
std::vector<uint16_t> rows_of(const TensorView& view, int64_t first, int64_t last) {
  std::vector<uint16_t> values;
  for (int64_t i = first; i < last; ++i) {
    for (int64_t h = 0; h < view.size(1); ++h) {
      const uint16_t* row = view.data_as<uint16_t>() + i * view.stride(0) + h * view.stride(1);
      values.insert(values.end(), row, row + view.size(2));
    }
  }
  return values;
}

TEST(Prefill, KeysThatNobodyAttendsNeverMatter) {
  for (const bool block_sparse : {false, true}) {
    SequenceCase c = two_sequences();
    c.causal = true;
    c.window.left = 20;
    c.lead = 5;
    if (block_sparse) c.selected = Selected::kAll;
    SequenceData data(c);
    SequenceData spoiled(c);
    const std::vector<SequenceArgs> clean = calls_of(data);
    const std::vector<SequenceArgs> calls = calls_of(spoiled);
    // Outside all sequences; and of the first one the keys before the first query's window.
    poison(spoiled.k, 0, c.lead);
    poison(spoiled.v, 0, c.lead);
    poison(spoiled.k, c.lead, c.lead + 300 - 150 - 20);
    poison(spoiled.v, c.lead, c.lead + 300 - 150 - 20);
    poison(spoiled.k, c.lead + 500, 2 * c.lead + 500);
    poison(spoiled.q, 0, c.lead);
    poison(spoiled.d_out, c.lead + 350, 2 * c.lead + 350);
    for (size_t direction : {0u, 1u}) EXPECT_EQ(bits_of(clean[direction]), bits_of(calls[direction]));
  }
}

TEST(Prefill, BlocksThatNobodySelectedNeverMatter) {
  SequenceCase c = two_sequences();
  c.selected = Selected::kShared;
  c.width = 1;
  SequenceData data(c);
  SequenceData spoiled(c);
  for (SequenceData* each : {&data, &spoiled}) {
    std::fill_n(each->q2k.data_as<int32_t>(), each->q2k.numel(), 1);
  }
  poison(spoiled.k, 0, 128);
  poison(spoiled.v, 256, 300);
  for (size_t direction : {0u, 1u}) {
    EXPECT_EQ(bits_of(calls_of(data)[direction]), bits_of(calls_of(spoiled)[direction]));
  }
}

TEST(Prefill, KeysBetweenThoseThatSelectingQueriesSeeNeverMatter) {
  // Query tiles 1 and 3 select block 1 and see 64 keys of it each; what lies between, tile 2 alone would see.
  SequenceCase c;
  c.lengths_q = {6 * 64};
  c.lengths_k = {416};
  c.q_block = 64;
  c.causal = true;
  c.selected = Selected::kShared;
  c.width = 1;
  for (const int64_t left : {0, 31, 62}) {
    c.window.left = left;
    SequenceData data(c);
    SequenceData spoiled(c);
    for (SequenceData* each : {&data, &spoiled}) {
      const int32_t lists[] = {-1, 1, -1, 1, -1, -1, -1};
      std::copy_n(lists, each->q2k.numel(), each->q2k.data_as<int32_t>());
    }
    const std::vector<SequenceArgs> clean = calls_of(data);
    const std::vector<SequenceArgs> calls = calls_of(spoiled);
    poison(spoiled.k, 160, 224 - left);
    poison(spoiled.v, 160, 224 - left);
    for (size_t direction : {0u, 1u}) EXPECT_EQ(bits_of(clean[direction]), bits_of(calls[direction])) << left;
  }
}

TEST(Prefill, AnLseFarBelowTheScoresShows) {
  // It is believed: weights of e^150 are no numbers that gradients could be made of.
  SequenceCase c;
  SequenceData data(c);
  const auto args = std::get<DensePrefillBwdArgs>(data.backward());
  for (int64_t i = 0; i < args.lse.numel(); ++i) args.lse.data_as<float>()[i] = -150.0f;
  for (const std::string& kernel : testing::kernels_of(Device::cpu(), true)) {
    run_training(args, {.kernel = kernel, .threads = 1});
    const uint16_t bits = args.dv.data_as<uint16_t>()[0];
    EXPECT_FALSE(std::isfinite(bf16_bits_to_f32(bits))) << kernel;
  }
}

TEST(Prefill, ManyShortSequencesNeedNoMoreMemoryThanALongOne) {
  const auto workspace_of = [](int64_t sequences, int64_t length) {
    SequenceCase c;
    c.lengths_q = std::vector<int64_t>(static_cast<size_t>(sequences), length);
    c.lengths_k = c.lengths_q;
    c.h_q = c.h_kv = 2;
    SequenceData data(c);
    return plan(std::get<DensePrefillBwdArgs>(data.backward()), Device::cpu(), with_threads(1))
        .workspace_bytes();
  };
  EXPECT_LT(workspace_of(512, 2), workspace_of(1, 1024) + (size_t{1} << 17));
}

TEST(Prefill, ASequenceAloneHasTheBitsThatItHasBesideOthers) {
  SequenceCase c = two_sequences();
  c.sink = Sink::kFinite;
  c.causal = true;
  SequenceData both(c);
  const auto forward = std::get<DensePrefillFwdArgs>(both.forward());
  const auto backward = std::get<DensePrefillBwdArgs>(both.backward());
  bits_of(forward);
  bits_of(backward);
  const auto out = rows_of(forward.out, 150, 350);
  const auto dq = rows_of(backward.dq, 150, 350);
  const auto dk = rows_of(backward.dk, 300, 500);
  const auto dv = rows_of(backward.dv, 300, 500);
  both.cu_q.data_as<int32_t>()[1] = 0;
  both.cu_k.data_as<int32_t>()[1] = 0;
  both.cu_q.data_as<int32_t>()[0] = both.cu_q.data_as<int32_t>()[1] = 150;
  both.cu_k.data_as<int32_t>()[0] = both.cu_k.data_as<int32_t>()[1] = 300;
  bits_of(forward);
  bits_of(backward);
  EXPECT_EQ(out, rows_of(forward.out, 150, 350));
  EXPECT_EQ(dq, rows_of(backward.dq, 150, 350));
  EXPECT_EQ(dk, rows_of(backward.dk, 300, 500));
  EXPECT_EQ(dv, rows_of(backward.dv, 300, 500));
  // Now rows of no sequence: not written by the forward, gradients of 0.
  EXPECT_EQ(rows_of(forward.out, 0, 150), std::vector<uint16_t>(150 * 4 * 128, 0xFFFF));
  EXPECT_EQ(rows_of(backward.dq, 0, 150), std::vector<uint16_t>(150 * 4 * 192, 0));
  EXPECT_EQ(rows_of(backward.dk, 0, 300), std::vector<uint16_t>(300 * 2 * 192, 0));
}

TEST(Prefill, AWindowThatHidesNothingChangesNoBit) {
  for (const bool causal : {false, true}) {
    SequenceCase c = two_sequences();
    c.causal = causal;
    SequenceData data(c);
    for (SequenceArgs args : calls_of(data)) {
      const std::vector<uint8_t> plain = bits_of(args);
      for (const int64_t side : {int64_t{1000}, int64_t{1} << 40}) {
        std::visit([&](auto& a) { a.window = {side, causal ? 0 : side}; }, args);
        EXPECT_EQ(plain, bits_of(args));
      }
    }
  }
}

TEST(Prefill, ACausalMaskCutsAWindowThatReachesAhead) {
  SequenceCase c = two_sequences();
  c.causal = true;
  c.window = {40, 0};
  SequenceData data(c);
  for (SequenceArgs args : calls_of(data)) {
    const std::vector<uint8_t> behind = bits_of(args);
    for (const int64_t right : {int64_t{-1}, int64_t{7}, int64_t{100000}}) {
      std::visit([&](auto& a) { a.window.right = right; }, args);
      EXPECT_EQ(behind, bits_of(args)) << right;
    }
  }
}

TEST(Prefill, OrderDuplicatesAndWidthOfAListChangeNoBit) {
  SequenceCase c = two_sequences();
  c.selected = Selected::kShared;
  c.causal = true;
  c.width = 6;
  SequenceData data(c);
  SequenceData other(c);
  const std::initializer_list<int32_t> plain = {0, 1, 2, -1, -1, -1};
  const std::initializer_list<int32_t> mixed = {2, -7, 1, 0, 1, 9999};
  for (int64_t row = 0; row < data.q2k.size(0); ++row) {
    std::copy(plain.begin(), plain.end(), data.q2k.data_as<int32_t>() + row * 6);
    std::copy(mixed.begin(), mixed.end(), other.q2k.data_as<int32_t>() + row * 6);
  }
  for (size_t direction : {0u, 1u}) {
    EXPECT_EQ(bits_of(calls_of(data)[direction]), bits_of(calls_of(other)[direction]));
  }
}

TEST(Prefill, StrangeCuSeqlensHaveAMeaning) {
  // Negative, past the end, and a decrease: [0, 100) and [60, 350), the second one's rows stay.
  SequenceCase c;
  c.lengths_q = {100, 100, 150};
  c.lengths_k = {100, 100, 150};
  SequenceData data(c);
  const int32_t values[] = {-5, 100, 60, 100000};
  for (const TensorView& cu : {data.cu_q, data.cu_k}) std::copy_n(values, 4, cu.data_as<int32_t>());
  SequenceCase alone = c;
  alone.lengths_q = {290};
  alone.lengths_k = {290};
  for (size_t direction : {0u, 1u}) {
    SequenceArgs args = calls_of(data)[direction];
    std::visit([](auto& a) { a.max_seqlen_q = a.max_seqlen_k = 350; }, args);
    const std::vector<uint8_t> one = bits_of(args, with_threads(1));
    EXPECT_EQ(one, bits_of(args, with_threads(4)));
  }
  auto forward = std::get<DensePrefillFwdArgs>(data.forward());
  forward.max_seqlen_q = forward.max_seqlen_k = 350;
  bits_of(forward);
  const auto late = rows_of(forward.out, 60, 350);
  const int32_t second[] = {60, 60, 60, 350};
  for (const TensorView& cu : {data.cu_q, data.cu_k}) std::copy_n(second, 4, cu.data_as<int32_t>());
  bits_of(forward);
  EXPECT_EQ(late, rows_of(forward.out, 60, 350));
  EXPECT_EQ(rows_of(forward.out, 0, 60), std::vector<uint16_t>(60 * 128, 0xFFFF));
}

TEST(Prefill, MaxSeqlenCutsLongerSequences) {
  SequenceCase c = two_sequences();
  SequenceData data(c);
  auto cut = std::get<DensePrefillFwdArgs>(data.forward());
  cut.max_seqlen_q = 30;
  cut.max_seqlen_k = 40;
  bits_of(cut);
  const auto out = rows_of(cut.out, 0, 30);
  EXPECT_EQ(rows_of(cut.out, 30, 150), std::vector<uint16_t>(120 * 4 * 128, 0xFFFF));
  auto whole = std::get<DensePrefillFwdArgs>(data.forward());
  data.cu_q.data_as<int32_t>()[1] = 30;
  data.cu_k.data_as<int32_t>()[1] = 40;
  data.cu_q.data_as<int32_t>()[2] = 30;
  data.cu_k.data_as<int32_t>()[2] = 40;
  bits_of(whole);
  EXPECT_EQ(out, rows_of(whole.out, 0, 30));
}

// Pairs of a query tile and a key tile that have a pair of query and key in common.
template <class Sees>
int64_t tile_pairs(int64_t length, int64_t rows, int64_t keys, const Sees& sees) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < length; i += rows) {
    for (int64_t j = 0; j < length; j += keys) {
      bool any = false;
      for (int64_t q = i; q < std::min(i + rows, length) && !any; ++q) {
        for (int64_t k = j; k < std::min(j + keys, length) && !any; ++k) any = sees(q, k);
      }
      pairs += any ? 1 : 0;
    }
  }
  return pairs;
}

// How many key tiles the call multiplied with query tiles.
int64_t visited(const SequenceArgs& args) {
  cpu::start_counting_phases();
  run_training(args, with_threads(2));
  return cpu::stop_counting_phases().times_in(cpu::Phase::kScores);
}

// Rows of a query tile.
int64_t tile_rows(const SequenceArgs& args) {
  return std::holds_alternative<DensePrefillFwdArgs>(args) ? 64 : 128;
}

TEST(Prefill, VisitsTheTilesThatItAttendsAndNoOthers) {
  SequenceCase c;
  c.lengths_q = {2000};
  c.lengths_k = {2000};
  c.h_q = 2;
  c.causal = true;
  SequenceData dense(c);
  for (const SequenceArgs& args : calls_of(dense)) {
    EXPECT_EQ(visited(args),
              2 * tile_pairs(2000, tile_rows(args), 256, [](int64_t q, int64_t k) { return k <= q; }));
  }
  c.window.left = 100;
  SequenceData window(c);
  for (const SequenceArgs& args : calls_of(window)) {
    EXPECT_EQ(visited(args), 2 * tile_pairs(2000, tile_rows(args), 256,
                                            [](int64_t q, int64_t k) { return k <= q && k >= q - 100; }));
  }
  c.window.left = -1;
  c.selected = Selected::kShared;
  c.width = 3;
  SequenceData selected(c);
  for (int64_t row = 0; row < selected.q2k.size(0); ++row) {
    const auto block = static_cast<int32_t>(row);
    const int32_t list[] = {0, block - 1, block};
    std::copy_n(list, 3, selected.q2k.data_as<int32_t>() + row * 3);
  }
  for (const SequenceArgs& args : calls_of(selected)) {
    EXPECT_EQ(visited(args), 2 * tile_pairs(2000, tile_rows(args), 128, [](int64_t q, int64_t k) {
                               const int64_t block = k / 128;
                               return k <= q && (block == 0 || block == q / 128 - 1 || block == q / 128);
                             }));
  }
}

TEST(Prefill, NoSequencesAndNoRows) {
  SequenceCase none;
  none.lengths_q = {};
  none.lengths_k = {};
  none.sink = Sink::kFinite;
  SequenceData data(none);
  const auto backward = data.backward();
  bits_of(data.forward());
  bits_of(backward);
  EXPECT_EQ(std::get<DensePrefillBwdArgs>(backward).d_sink.data_as<float>()[0], 0.0f);

  // Keys of a sequence without queries have gradients of 0, over whatever was there.
  SequenceCase keys;
  keys.lengths_q = {0};
  keys.lengths_k = {200};
  SequenceData unattended(keys);
  const auto args = std::get<DensePrefillBwdArgs>(unattended.backward());
  bits_of(args);
  EXPECT_EQ(rows_of(args.dk, 0, 200), std::vector<uint16_t>(200 * 128, 0));
  EXPECT_EQ(rows_of(args.dv, 0, 200), std::vector<uint16_t>(200 * 128, 0));
}

}  // namespace
}  // namespace tilewise::training
