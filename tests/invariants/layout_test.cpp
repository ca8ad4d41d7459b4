// Invariant 8: every kernel reads the pages written by hand, where tensors lie changes no bit, and a cache of
// the wrong width is refused by name.
#include <string>
#include <vector>

#include "cases/data.h"
#include "tests/format/golden_pages.h"
#include "tests/support/every_kernel.h"
#include "tests/support/small_cases.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Layout;
using cases::Op;
using cases::Operand;
using cases::Role;

class Layouts : public OfOperator {};

TEST_P(Layouts, StridedAndContiguousTensorsGiveEqualBits) {
  for (const Case& c : small_cases(GetParam())) {
    SCOPED_TRACE(name(c));
    CaseData contiguous = cases::make(c);
    CaseData strided = cases::make(with_layout({c}, Layout::kViews)[0]);
    int64_t gaps = 0;
    for (Operand& o : strided.operands()) {
      const Operand& from = contiguous.operand(o.name);
      gaps += o.view.is_contiguous() ? 0 : 1;
      write_contents(o.view, cases::contents(from.view));
      if (o.role == Role::kInOut)
        o.memory.whole([&](uint8_t* p) { o.initial.assign(p, p + o.initial.size()); });
    }
    EXPECT_GT(gaps, 0);
    for_every_kernel(contiguous.args(), [&](const std::string& kernel) {
      EXPECT_TRUE(same_bits(bits_of(contiguous, kernel), bits_of(strided, kernel)));
      EXPECT_EQ(strided.disturbed_output(), "");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Layouts, ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

class CacheWidths : public OfOperator {};

// The cache tensor of the operator, and its last dimension 16 bytes narrower or wider than the record's.
TEST_P(CacheWidths, OthersThanTheRecordsAreRefusedByName) {
  const bool moves = GetParam() == Op::kQuantizeKv || GetParam() == Op::kDequantizeKv;
  for (const Case& c : small_cases(GetParam())) {
    std::vector<const char*> caches = {moves ? "pages" : "kv_cache"};
    if (c.extra) caches.push_back("extra_cache");
    for (const char* cache : caches) {
      const bool appended = c.op == Op::kAppendKv;  // whose argument is called cache
      for (const int64_t bytes : {-16, 16}) {
        SCOPED_TRACE(name(c) + ", " + cache);
        CaseData data = cases::make(c);
        const TensorView view = data.view(cache);
        std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
        shape[3] += bytes / size_of(view.dtype());
        replace(data, cache, view.dtype(), shape);
        const Record record = cache == std::string("extra_cache") ? c.extra->record : c.main.record;
        try {
          cases::plan_case(data.args(), device());
          ADD_FAILURE() << "was planned";
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.what(),
                      ::testing::AllOf(::testing::StartsWith(op_name(c.op) + std::string(": ") +
                                                             (appended ? "cache" : cache) + " must be"),
                                       ::testing::HasSubstr(record_name(record)),
                                       ::testing::HasSubstr(to_string(data.view(cache)))));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CacheWidths, ::testing::ValuesIn(ops_where(cases::has_cache_records)),
                         operator_name);

TEST(GoldenPages, AreReadByEveryKernel) {
  for (golden::Golden& g : golden::all_goldens()) {
    SCOPED_TRACE(record_name(g.record));
    const auto d = static_cast<int64_t>(g.tokens[0].columns.size());
    const bool plain = g.record == Record::kBf16;
    const int64_t element = plain ? 2 : 1;
    const auto width = static_cast<int64_t>(g.page.size()) / golden::kPage / element;
    cases::Buffer page(static_cast<int64_t>(g.page.size()), 0);
    std::copy(g.page.begin(), g.page.end(), page.data());
    cases::Buffer x(golden::kPage * d * 2, 0);
    DequantizeKvArgs args;
    args.pages = {page.data(), plain ? DType::kBF16 : DType::kUInt8, {1, golden::kPage, 1, width}};
    args.record = g.record;
    args.x = {x.data(), DType::kBF16, {golden::kPage, d}};
    for_every_kernel(args, [&](const std::string& kernel) {
      fill_elements(args.x, Fill::kRandom);
      run_kernel(args, kernel);
      for (const golden::Token& token : g.tokens) {
        const auto* row = args.x.data_as<uint16_t>() + token.place * d;
        EXPECT_EQ(std::vector<uint16_t>(row, row + d), token.columns) << "token " << token.place;
      }
    });
  }
}

}  // namespace
}  // namespace tilewise::testing
