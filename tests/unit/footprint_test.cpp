// Overlap of views against a set of bytes.
#include "core/footprint.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "core/row_major.h"

namespace tilewise {
namespace {

TensorView view(int64_t address, DType type, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  return {reinterpret_cast<const void*>(static_cast<intptr_t>(address)), type, shape, strides};
}

/// Every byte that a view covers; `twice` tells whether two elements share one.
std::set<int64_t> bytes_of(const TensorView& v, bool* twice) {
  std::set<int64_t> bytes;
  *twice = false;
  std::vector<int64_t> at(static_cast<size_t>(v.rank()), 0);
  for (int64_t n = 0; n < v.numel(); ++n) {
    int64_t first = static_cast<int64_t>(reinterpret_cast<intptr_t>(v.data()));
    int64_t rest = n;
    for (int i = v.rank() - 1; i >= 0; --i) {
      first += rest % v.size(i) * v.stride(i) * size_of(v.dtype());
      rest /= v.size(i);
    }
    for (int64_t b = 0; b < size_of(v.dtype()); ++b) *twice |= !bytes.insert(first + b).second;
  }
  return bytes;
}

bool share_byte(const std::set<int64_t>& a, const std::set<int64_t>& b) {
  for (int64_t byte : a) {
    if (b.count(byte) != 0) return true;
  }
  return false;
}

TEST(Footprint, RandomViewsAgainstSetsOfBytes) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  const auto make = [&] {
    const int rank = static_cast<int>(below(4));
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    for (int i = 0; i < rank; ++i) {
      shape.push_back(below(20) == 0 ? 0 : 1 + below(4));
      strides.push_back(below(25) - (below(4) == 0 ? 20 : 0));
    }
    const DType types[] = {DType::kUInt8, DType::kBF16, DType::kFP32};
    return view(1000 + below(80), types[below(3)], shape, strides);
  };
  int overlaps = 0;
  int in_gaps = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorView a = make();
    const TensorView b = make();
    bool twice_a = false;
    bool twice_b = false;
    const auto bytes_a = bytes_of(a, &twice_a);
    const auto bytes_b = bytes_of(b, &twice_b);
    const Footprint place_a = footprint(a);
    const Footprint place_b = footprint(b);
    const bool expected = share_byte(bytes_a, bytes_b);
    // A view whose elements share memory counts as all bytes of the run that they form, so it may cover more.
    if (!place_a.shares_itself && !place_b.shares_itself) {
      ASSERT_EQ(overlap(place_a, place_b), expected) << to_string(a) << " " << to_string(b) << " " << i;
      ASSERT_EQ(overlap(place_b, place_a), expected);
    } else if (expected) {
      ASSERT_TRUE(overlap(place_a, place_b));
    }
    if (twice_a) {
      ASSERT_TRUE(place_a.shares_itself);
    }
    if (!bytes_a.empty()) {
      ASSERT_EQ(place_a.first, *bytes_a.begin());
      ASSERT_EQ(place_a.extent(), *bytes_a.rbegin() + 1 - *bytes_a.begin());
    }
    overlaps += expected ? 1 : 0;
    in_gaps += !expected && !bytes_a.empty() && !bytes_b.empty() && *bytes_a.begin() < *bytes_b.rbegin() &&
                       *bytes_b.begin() < *bytes_a.rbegin()
                   ? 1
                   : 0;
  }
  EXPECT_GT(overlaps, 1000);
  EXPECT_GT(in_gaps, 1000);
}

TEST(Footprint, DenseViewsDoNotShareThemselves) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {5}, {2, 3, 4}, {1, 7, 1}, {0, 3}}) {
    const auto strides = row_major_strides(shape);
    const Footprint f = footprint({nullptr, DType::kFP32, shape, std::span(strides).first(shape.size())});
    EXPECT_FALSE(f.shares_itself);
    EXPECT_EQ(f.num_steps, 0);
  }
}

TEST(Footprint, ColumnsOfOneLargeBuffer) {
  // Millions of rows side by side: told apart without walking them.
  const auto left = view(0, DType::kBF16, {4, 1000000, 64, 576}, {64 * 1088 * 1000000LL, 64 * 1088, 1088, 1});
  const auto right =
      view(2 * 576, DType::kBF16, {4, 1000000, 64, 512}, {64 * 1088 * 1000000LL, 64 * 1088, 1088, 1});
  EXPECT_FALSE(overlap(footprint(left), footprint(right)));
  const auto wide =
      view(2 * 568, DType::kBF16, {4, 1000000, 64, 512}, {64 * 1088 * 1000000LL, 64 * 1088, 1088, 1});
  EXPECT_TRUE(overlap(footprint(left), footprint(wide)));
}

}  // namespace
}  // namespace tilewise
