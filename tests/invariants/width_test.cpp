// Invariant 6: byte offsets past 2^31 and 2^32.
#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "cases/data.h"
#include "tests/support/every_kernel.h"
#include "tests/support/guarded_memory.h"
#include "tests/support/small_cases.h"
#include "tests/support/spoil.h"
#include "tests/support/tokens.h"

namespace tilewise::testing {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Op;
using cases::Operand;
using cases::Role;

// Tensors are stretched to this much address space: some of their rows lie past 2^31, some past 2^32.
constexpr int64_t kWide = int64_t{6} << 30;

constexpr bool passes(int64_t bytes) { return bytes > (int64_t{1} << 32); }

// Strides that spread a tensor over kWide bytes, along its first dimension that may; its own where none may.
std::vector<int64_t> wide_strides(const Operand& o) {
  std::vector<int64_t> strides(o.view.strides().begin(), o.view.strides().end());
  if (o.name == "out_fp8" || o.name == "o_accum" || o.name == "lse_accum" || o.view.numel() == 0)
    return strides;
  const int64_t element = size_of(o.view.dtype());
  const auto stretched = [&](int dim) {
    return kWide / (o.view.size(dim) - 1) / 64 * 64 / element + 64 / element;
  };
  if (o.name == "out_sf") {
    if (o.view.size(2) > 1) strides[2] = stretched(2);
    strides[1] = strides[2] * o.view.size(2);
    return strides;
  }
  for (int dim = 0; dim + 1 < o.view.rank(); ++dim) {
    const bool inside_page =
        dim == 1 && (o.name == "kv_cache" || o.name == "extra_cache" || o.name == "pages");
    const bool inside_token = dim == 1 && o.name == "q" && strides[0] == o.view.size(1) * o.view.size(2);
    if (o.view.size(dim) < 2 || inside_page || inside_token) continue;
    strides[static_cast<size_t>(dim)] = stretched(dim);
    // Outer dimensions, all of size 1, do not matter; the spread one is the outermost that does.
    break;
  }
  return strides;
}

int64_t span_bytes(const TensorView& view) {
  int64_t last = 0;
  for (int i = 0; i < view.rank(); ++i) last += (view.size(i) - 1) * view.stride(i);
  return (last + 1) * size_of(view.dtype());
}

// Moves the tensor, with its contents, to its place in `memory`, which must outlive the data.
void spread(Operand& o, std::deque<SparseMemory>& memory) {
  const std::vector<int64_t> strides = wide_strides(o);
  if (std::equal(strides.begin(), strides.end(), o.view.strides().begin())) return;
  const std::vector<uint8_t> contents = cases::contents(o.view);
  const TensorView shape_only(nullptr, o.view.dtype(), o.view.shape(), strides);
  memory.emplace_back(span_bytes(shape_only));
  o.view = TensorView(memory.back().data(), o.view.dtype(), o.view.shape(), strides);
  write_contents(o.view, contents);
}

class Width : public OfOperator {};

TEST_P(Width, OffsetsPast32Bits) {
  std::vector<Case> list = small_cases(GetParam());
  for (Case& c : list) {
    c.main.rows = c.op == Op::kDenseDecode ? 0 : 90;
    if (c.extra) c.extra->rows = 90;
    SCOPED_TRACE(name(c));
    CaseData ordinary = cases::make(c);
    for_every_kernel(ordinary.args(), [&](const std::string& kernel) {
      const Bits expected = bits_of(ordinary, kernel);
      std::deque<SparseMemory> memory;
      CaseData wide = cases::make(c);
      for (Operand& o : wide.operands()) spread(o, memory);
      ASSERT_GE(memory.size(), 2u);
      ASSERT_TRUE(std::all_of(memory.begin(), memory.end(), [](const auto& m) { return passes(m.bytes()); }));
      run_kernel(wide.args(), kernel);
      EXPECT_TRUE(same_bits(expected, wide.output_bits()));
    });
    if (smoke()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Width, ::testing::ValuesIn(cases::all_ops().begin(), cases::all_ops().end()),
                         operator_name);

// Calls `visit(bytes, n)` for the bytes of a token, plane by plane.
template <class Visit>
void for_planes(const CacheView& cache, int64_t slot, const Visit& visit) {
  const formats::RecordSpec spec = formats::record_spec(cache.record, static_cast<int32_t>(cache.d));
  for (int32_t plane = 0; plane < spec.num_planes; ++plane) {
    visit(formats::plane_row(cache.block(slot), cache.page(), spec, plane, slot % cache.page()),
          spec.plane_bytes[plane]);
  }
}

std::vector<uint8_t> token_bytes(const CacheView& cache, int64_t slot) {
  std::vector<uint8_t> bytes;
  for_planes(cache, slot, [&](const uint8_t* p, int32_t n) { bytes.insert(bytes.end(), p, p + n); });
  return bytes;
}

// One page of kWide bytes: the tokens of `from` stand in it far apart, and the entries of `lists` follow
// them.
struct WidePage {
  std::deque<SparseMemory>& memory;
  int64_t step = 0;

  void move(CaseData& data, const char* cache, const char* entries) {
    const CacheView from = cache_view(data, cache);
    const int64_t width = from.view.size(3);
    const int64_t page = kWide / (width * size_of(from.view.dtype()));
    step = page / from.slots();
    memory.emplace_back(page * width * size_of(from.view.dtype()) + 16);
    const std::vector<int64_t> shape = {1, page, 1, width};
    const std::vector<int64_t> strides = {page * width, width, width, 1};
    CacheView to = from;
    to.view = TensorView(memory.back().data(), from.view.dtype(), shape, strides);
    for (int64_t slot = 0; slot < from.slots(); ++slot) {
      const std::vector<uint8_t> bytes = token_bytes(from, slot);
      const uint8_t* next = bytes.data();
      for_planes(to, slot * step + step - 1, [&](uint8_t* p, int32_t n) {
        std::memcpy(p, next, static_cast<size_t>(n));
        next += n;
      });
    }
    data.operand(cache).view = to.view;
    const TensorView lists = data.view(entries);
    for (int64_t i = 0; i < lists.numel(); ++i) {
      int32_t& entry = lists.data_as<int32_t>()[i];
      entry = entry >= 0 && entry < from.slots() ? static_cast<int32_t>(entry * step + step - 1) : -1;
    }
  }
};

class WidePages : public OfOperator {};

TEST_P(WidePages, OffsetsPast32BitsInsideAPage) {
  for (Case c : small_cases(GetParam())) {
    c.dtype = c.op == Op::kAppendKv ? DType::kInt32 : c.dtype;
    c.main.rows = 80;
    if (c.extra) c.extra->rows = 80;
    SCOPED_TRACE(name(c));
    CaseData ordinary = cases::make(c);
    for_every_kernel(ordinary.args(), [&](const std::string& kernel) {
      std::deque<SparseMemory> memory;
      CaseData wide = cases::make(c);
      WidePage main{memory};
      main.move(wide, "kv_cache", c.op == Op::kAppendKv ? "slots" : "indices");
      if (c.extra) WidePage{memory}.move(wide, "extra_cache", "extra_indices");
      const Bits expected = bits_of(ordinary, kernel);
      run_kernel(wide.args(), kernel);
      if (c.op != Op::kAppendKv) {
        EXPECT_TRUE(same_bits(expected, wide.output_bits()));
        return;
      }
      const CacheView a = cache_view(ordinary, "kv_cache");
      const CacheView b = cache_view(wide, "kv_cache");
      for (int64_t slot = 0; slot < a.slots(); ++slot) {
        EXPECT_EQ(token_bytes(a, slot), token_bytes(b, slot * main.step + main.step - 1)) << slot;
      }
    });
    if (smoke()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, WidePages,
                         ::testing::Values(Op::kSparseDecode, Op::kFusedDecode, Op::kFusedDecodePartials,
                                           Op::kAppendKv),
                         operator_name);

}  // namespace
}  // namespace tilewise::testing
