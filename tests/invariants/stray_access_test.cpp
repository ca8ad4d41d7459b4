// Invariant 4: no byte beside an array is read or written.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/guarded_memory.h"
#include "tests/support/small_cases.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Operand;
using cases::Role;
using Guard = GuardedMemory::Guard;

// Bytes from the first element to the end of the last one.
int64_t span_bytes(const TensorView& view) {
  if (view.numel() == 0) return 0;
  int64_t last = 0;
  for (int i = 0; i < view.rank(); ++i) last += (view.size(i) - 1) * view.stride(i);
  return (last + 1) * size_of(view.dtype());
}

// What the operators ask of the address.
int64_t alignment_of(const Operand& o) {
  if (o.name == "out_fp8") return 32;
  const int64_t element = size_of(o.view.dtype());
  return o.view.rank() >= 2 && element <= 2 ? 16 : element;
}

// Moves all tensors of the data to arrays of exactly their size.
std::vector<GuardedMemory> fence(CaseData& data, Guard guard) {
  std::vector<GuardedMemory> arrays;
  for (Operand& o : data.operands()) {
    const std::vector<uint8_t> contents = cases::contents(o.view);
    arrays.emplace_back(span_bytes(o.view), alignment_of(o), guard);
    o.view = TensorView(arrays.back().data(), o.view.dtype(), o.view.shape(), o.view.strides());
    write_contents(o.view, contents);
  }
  return arrays;
}

void run_fenced(const CaseData& data, const std::string& kernel, Guard guard) {
  PlanOptions options;
  options.kernel = kernel;
  options.threads = 2;
  const Plan plan = cases::plan_case(data.args(), device(), options);
  EXPECT_EQ(plan.kernel(), kernel);
  const GuardedMemory workspace(static_cast<int64_t>(plan.workspace_bytes()), 64, guard);
  cases::run_case(plan, data.args(), {workspace.data(), plan.workspace_bytes()});
  EXPECT_TRUE(workspace.slack_holds());
}

std::vector<Case> cases_of(cases::Op op) {
  std::vector<Case> list = small_cases(op);
  for (const Case& c : long_cases(op)) {
    if (!smoke()) list.push_back(c);
  }
  return list;
}

class StrayAccess : public OfOperator {};

TEST_P(StrayAccess, ArraysMayEndOrBeginAtAnUnmappedPage) {
  for (const Case& c : cases_of(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData ordinary = cases::make(c);
    for_every_kernel(ordinary.args(), [&](const std::string& kernel) {
      const Bits expected = bits_of(ordinary, kernel);
      for (const Guard guard : {Guard::kBehind, Guard::kBefore}) {
        CaseData fenced = cases::make(c);
        const std::vector<GuardedMemory> arrays = fence(fenced, guard);
        run_fenced(fenced, kernel, guard);
        EXPECT_TRUE(same_bits(expected, fenced.output_bits()));
        for (const GuardedMemory& array : arrays) EXPECT_TRUE(array.slack_holds());
      }
    });
  }
}

// Puts every output between canaries (-0.0 in floats, which an added zero would change), wider than a token's
// row.
void surround_outputs(CaseData& data) {
  for (Operand& o : data.operands()) {
    if (o.role == Role::kInput) continue;
    const std::vector<uint8_t> contents = cases::contents(o.view);
    const TensorView old = o.view;
    int64_t row = 1;
    for (int i = 0; i < old.rank(); ++i) row = std::max(row, old.size(i) > 0 ? std::abs(old.stride(i)) : 0);
    const int64_t margin = (row * size_of(old.dtype()) + 63) / 64 * 64;
    o.memory = cases::Buffer(span_bytes(old) + 2 * margin, 0);
    o.view = TensorView(o.memory.data() + margin, old.dtype(), old.shape(), old.strides());
    cases::fill_with_canaries(o);
    write_contents(o.view, contents);
    o.initial.resize(static_cast<size_t>(o.memory.whole_bytes()));
    o.memory.whole([&](uint8_t* p) { std::copy_n(p, o.initial.size(), o.initial.begin()); });
  }
}

TEST_P(StrayAccess, RowsAroundOutputsKeepTheirCanaries) {
  for (const Case& c : with_layout(cases_of(GetParam()), cases::Layout::kViews)) {
    SCOPED_TRACE(name(c));
    CaseData ordinary = cases::make(c);
    CaseData surrounded = cases::make(c);
    surround_outputs(surrounded);
    for_every_kernel(ordinary.args(), [&](const std::string& kernel) {
      EXPECT_TRUE(same_bits(bits_of(ordinary, kernel), bits_of(surrounded, kernel)));
      EXPECT_EQ(surrounded.disturbed_output(), "");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, StrayAccess,
                         ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

// The two tests above can only fail if the fence works: arrays that are one row shorter than the call says
// must not survive it.
class StrayAccessDeathTest : public ::testing::Test {
 protected:
  StrayAccessDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(StrayAccessDeathTest, GuardedMemoryEndsBothWays) {
  const GuardedMemory behind(100, 4, Guard::kBehind);
  behind.data()[99] = 1;
  EXPECT_DEATH(static_cast<volatile uint8_t*>(behind.data())[100] = 1, "");
  const GuardedMemory before(100, 4, Guard::kBefore);
  before.data()[0] = 1;
  EXPECT_DEATH(static_cast<volatile uint8_t*>(before.data())[-1] = 1, "");
}

TEST_F(StrayAccessDeathTest, SlackIsWatched) {
  const GuardedMemory memory(40, 16, Guard::kBehind);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 16, 0u);
  EXPECT_TRUE(memory.slack_holds());
  memory.data()[40] = 0;
  EXPECT_FALSE(memory.slack_holds());
}

// An array moved so that the unmapped page takes its last row along the first dimension.
void run_with_a_row_missing(const char* argument) {
  Case c = small_prefill_cases(cases::Op::kSparsePrefillFwd)[0];
  c.holes = cases::Holes::kNone;
  c.main.lengths = cases::Lengths::kNone;
  c.main.width = c.main.rows;  // lists that name every row
  CaseData data = cases::make(c);
  std::vector<GuardedMemory> arrays = fence(data, Guard::kBehind);
  for (Operand& o : data.operands()) {
    if (o.name != argument) continue;
    const int64_t row = o.view.stride(0) * size_of(o.view.dtype());
    o.view = TensorView(o.view.data_as<uint8_t>() + row, o.view.dtype(), o.view.shape(), o.view.strides());
  }
  run_kernel(data.args(), "cpu_baseline", 1);
}

TEST_F(StrayAccessDeathTest, AMissingRowOfAnInputIsFatal) {
  EXPECT_DEATH(run_with_a_row_missing("kv"), "");
  EXPECT_DEATH(run_with_a_row_missing("q"), "");
  EXPECT_DEATH(run_with_a_row_missing("indices"), "");
}

TEST_F(StrayAccessDeathTest, AMissingRowOfAnOutputIsFatal) {
  EXPECT_DEATH(run_with_a_row_missing("out"), "");
  EXPECT_DEATH(run_with_a_row_missing("lse"), "");
}

TEST_F(StrayAccessDeathTest, NothingMissingIsNotFatal) { run_with_a_row_missing("nothing"); }

}  // namespace
}  // namespace tilewise::testing
