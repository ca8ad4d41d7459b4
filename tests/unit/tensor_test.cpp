// Views: shapes, strides, texts, and what is refused.
#include "tilewise/tensor.h"

#include <gtest/gtest.h>

#include <vector>

#include "tilewise/error.h"

namespace tilewise {
namespace {

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

using Sizes = std::vector<int64_t>;

TEST(TensorView, AbsentByDefault) {
  const TensorView view;
  EXPECT_FALSE(view.present());
  EXPECT_FALSE(view);
  EXPECT_EQ(view.rank(), 0);
  EXPECT_EQ(view.numel(), 0);
  EXPECT_EQ(view.data(), nullptr);
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(to_string(view), "nothing");
}

TEST(TensorView, ContiguousStrides) {
  float data[24] = {};
  const TensorView view(data, DType::kFP32, {2, 3, 4});
  EXPECT_TRUE(view);
  EXPECT_EQ(view.rank(), 3);
  EXPECT_EQ(view.numel(), 24);
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(1), 4);
  EXPECT_EQ(view.stride(2), 1);
  EXPECT_EQ(view.data_as<float>(), data);
  EXPECT_EQ(view.dtype(), DType::kFP32);
  EXPECT_EQ(view.device(), DeviceId{});
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_EQ(to_string(view), "float32 [2, 3, 4]");
}

TEST(TensorView, Contiguity) {
  const auto contiguous = [](Sizes shape, Sizes strides) {
    return TensorView(nullptr, DType::kBF16, shape, strides).is_contiguous();
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({4}, {1}));
  EXPECT_FALSE(contiguous({4}, {2}));
  EXPECT_TRUE(contiguous({1}, {7}));
  EXPECT_TRUE(contiguous({3, 1, 4}, {4, 99, 1}));
  EXPECT_FALSE(contiguous({3, 2, 4}, {8, 5, 1}));
  EXPECT_FALSE(contiguous({3, 4}, {1, 3}));
  EXPECT_FALSE(contiguous({3, 4}, {0, 1}));
  EXPECT_TRUE(contiguous({3, 0}, {17, 5}));
}

TEST(TensorView, ScalarsAndEmptyViews) {
  const TensorView scalar(nullptr, DType::kFP32, {});
  EXPECT_TRUE(scalar.present());
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(to_string(scalar), "float32 []");
  EXPECT_EQ(TensorView(nullptr, DType::kFP32, {3, 0, 5}).numel(), 0);
  // No element, so no size is too large.
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(TensorView(nullptr, DType::kFP32, {huge, 0, huge, huge}).numel(), 0);
  EXPECT_EQ(TensorView(nullptr, DType::kFP32, Sizes{huge, 0}, Sizes{INT64_MIN, INT64_MAX}).numel(), 0);
}

TEST(TensorView, Refusals) {
  const int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(refusal([] { TensorView(nullptr, DType::kBF16, {1, 1, 1, 1, 1, 1}); }),
            "TensorView: shape must be of at most 5 dimensions, got 6 of them");
  EXPECT_EQ(refusal([] { TensorView(nullptr, DType::kBF16, Sizes{1, 2}, Sizes{1}); }),
            "TensorView: shape must be as long as strides, got 2 sizes and 1 strides");
  EXPECT_EQ(refusal([] { TensorView(nullptr, DType::kBF16, {2, -1}); }),
            "TensorView: shape must be of sizes of at least 0, got [2, -1]");
  EXPECT_EQ(refusal([] { TensorView(nullptr, DType::kBF16, {0, -1}); }),
            "TensorView: shape must be of sizes of at least 0, got [0, -1]");
  EXPECT_EQ(
      refusal([&] { TensorView(nullptr, DType::kBF16, {2, huge}); }),
      "TensorView: shape must be of less than 2^63 bytes, got bfloat16 [2, 4611686018427387904] with strides "
      "[4611686018427387904, 1]");
  EXPECT_EQ(
      refusal([&] { TensorView(nullptr, DType::kUInt8, {3, huge}); }),
      "TensorView: shape must be of less than 2^63 bytes, got uint8 [3, 4611686018427387904] with strides "
      "[4611686018427387904, 1]");
  // One byte each, but spread too far.
  EXPECT_EQ(
      refusal([&] { TensorView(nullptr, DType::kUInt8, Sizes{4}, Sizes{huge}); }),
      "TensorView: shape must be of less than 2^63 bytes, got uint8 [4] with strides [4611686018427387904]");
  EXPECT_EQ(
      refusal([&] { TensorView(nullptr, DType::kUInt8, Sizes{2}, Sizes{INT64_MIN}); }),
      "TensorView: shape must be of less than 2^63 bytes, got uint8 [2] with strides [-9223372036854775808]");
  EXPECT_EQ(refusal([&] { TensorView(nullptr, DType::kUInt8, Sizes{2, 2}, Sizes{huge, huge}); }),
            "TensorView: shape must be of less than 2^63 bytes, got uint8 [2, 2] with strides "
            "[4611686018427387904, 4611686018427387904]");
  EXPECT_EQ(refusal([&] { TensorView(nullptr, DType::kUInt8, Sizes{2}, Sizes{huge}); }),
            "nothing was thrown");
  EXPECT_EQ(refusal([&] { TensorView(nullptr, DType::kUInt8, Sizes{1}, Sizes{INT64_MIN}); }),
            "nothing was thrown");
}

TEST(DType, NamesAndSizes) {
  const struct {
    DType type;
    const char* name;
    int64_t bytes;
  } all[] = {
      {DType::kBF16, "bfloat16", 2},
      {DType::kFP16, "float16", 2},
      {DType::kFP32, "float32", 4},
      {DType::kE4M3, "float8_e4m3fn", 1},
      {DType::kUE8M0, "float8_e8m0fnu", 1},
      {DType::kE2M1x2, "float4_e2m1fn_x2", 1},
      {DType::kInt32, "int32", 4},
      {DType::kUInt8, "uint8", 1},
      {DType::kInt8, "int8", 1},
      {DType::kInt64, "int64", 8},
      {DType::kFP64, "float64", 8},
      {DType::kBool, "bool", 1},
      {DType::kUnknown, "an unknown type", 0},
      {static_cast<DType>(99), "an unknown type", 0},
      {static_cast<DType>(-5), "an unknown type", 0},
  };
  for (const auto& row : all) {
    EXPECT_STREQ(to_string(row.type), row.name);
    EXPECT_EQ(size_of(row.type), row.bytes) << row.name;
  }
}

}  // namespace
}  // namespace tilewise
