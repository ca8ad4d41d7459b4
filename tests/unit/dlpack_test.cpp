// DLPack tensors as views.
#include "tilewise/dlpack.h"

#include <gtest/gtest.h>

#include <vector>

#include "tilewise/error.h"

namespace tilewise {
namespace {

// Codes of DLPack 1.1, spelled out for headers that are older.
constexpr uint8_t kDlBool = 6;
constexpr uint8_t kDlFloat8E4m3 = 8;
constexpr uint8_t kDlFloat8E4m3fn = 10;
constexpr uint8_t kDlFloat8E4m3fnuz = 11;
constexpr uint8_t kDlFloat8E5m2 = 12;
constexpr uint8_t kDlFloat8E8m0fnu = 14;
constexpr uint8_t kDlFloat4E2m1fn = 17;

struct Source {
  std::vector<int64_t> shape{2, 3};
  std::vector<int64_t> strides;
  unsigned char bytes[64] = {};
  DLDevice device{kDLCPU, 0};
  DLDataType type{kDLFloat, 32, 1};
  uint64_t byte_offset = 0;
  bool null = false;

  DLTensor tensor() {
    DLTensor t{};
    t.data = null ? nullptr : bytes;
    t.device = device;
    t.ndim = static_cast<int>(shape.size());
    t.dtype = type;
    t.shape = shape.data();
    t.strides = strides.empty() ? nullptr : strides.data();
    t.byte_offset = byte_offset;
    return t;
  }
  TensorView view() { return from_dlpack(tensor()); }
  std::string refusal() {
    try {
      view();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
};

TEST(FromDlpack, RowMajorWithoutStrides) {
  Source s;
  s.shape = {2, 3, 1, 4, 5};
  const TensorView view = s.view();
  EXPECT_EQ(view.data(), s.bytes);
  EXPECT_EQ(view.dtype(), DType::kFP32);
  EXPECT_EQ(view.device(), DeviceId{});
  EXPECT_EQ(std::vector<int64_t>(view.shape().begin(), view.shape().end()), s.shape);
  EXPECT_EQ(std::vector<int64_t>(view.strides().begin(), view.strides().end()),
            (std::vector<int64_t>{60, 20, 20, 5, 1}));
}

TEST(FromDlpack, StridesAndOffset) {
  Source s;
  s.strides = {1, 2};
  s.byte_offset = 24;
  const TensorView view = s.view();
  EXPECT_EQ(view.data(), s.bytes + 24);
  EXPECT_EQ(view.stride(0), 1);
  EXPECT_EQ(view.stride(1), 2);
  s.null = true;
  EXPECT_EQ(s.view().data(), nullptr);
}

TEST(FromDlpack, Scalars) {
  Source s;
  s.shape = {};
  EXPECT_TRUE(s.view().present());
  EXPECT_EQ(s.view().rank(), 0);
  EXPECT_EQ(s.view().numel(), 1);
}

TEST(FromDlpack, Devices) {
  Source s;
  s.device = {kDLCPU, 3};
  EXPECT_EQ(s.view().device(), DeviceId{}) << "the CPU is one device";
  s.device = {kDLCUDA, 3};
  EXPECT_EQ(s.view().device(), (DeviceId{DeviceType::kCuda, 3}));
  s.device = {kDLROCM, 0};
  EXPECT_EQ(s.refusal(), "from_dlpack: tensor must be on cpu or cuda, got DLPack device type 10");
}

TEST(FromDlpack, Types) {
  const struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    DType type;
  } all[] = {
      {kDLBfloat, 16, 1, DType::kBF16},
      {kDLFloat, 16, 1, DType::kFP16},
      {kDLFloat, 32, 1, DType::kFP32},
      {kDLFloat, 64, 1, DType::kFP64},
      {kDLInt, 8, 1, DType::kInt8},
      {kDLInt, 32, 1, DType::kInt32},
      {kDLInt, 64, 1, DType::kInt64},
      {kDLUInt, 8, 1, DType::kUInt8},
      {kDlBool, 8, 1, DType::kBool},
      {kDlFloat8E4m3fn, 8, 1, DType::kE4M3},
      {kDlFloat8E8m0fnu, 8, 1, DType::kUE8M0},
      {kDlFloat4E2m1fn, 4, 2, DType::kE2M1x2},
      // Types that no operator takes.
      {kDLBfloat, 32, 1, DType::kUnknown},
      {kDLFloat, 8, 1, DType::kUnknown},
      {kDLFloat, 128, 1, DType::kUnknown},
      {kDLInt, 16, 1, DType::kUnknown},
      {kDLInt, 4, 1, DType::kUnknown},
      {kDLUInt, 16, 1, DType::kUnknown},
      {kDLUInt, 32, 1, DType::kUnknown},
      {kDLOpaqueHandle, 64, 1, DType::kUnknown},
      {kDLComplex, 64, 1, DType::kUnknown},
      {kDlFloat8E4m3, 8, 1, DType::kUnknown},
      {kDlFloat8E4m3fnuz, 8, 1, DType::kUnknown},
      {kDlFloat8E5m2, 8, 1, DType::kUnknown},
      {kDlFloat4E2m1fn, 4, 1, DType::kUnknown},
      {200, 8, 1, DType::kUnknown},
  };
  for (const auto& row : all) {
    Source s;
    s.type = {row.code, row.bits, row.lanes};
    EXPECT_EQ(s.view().dtype(), row.type) << int{row.code} << " " << int{row.bits};
  }
}

TEST(FromDlpack, Refusals) {
  Source s;
  s.type = {kDLFloat, 32, 4};
  EXPECT_EQ(s.refusal(), "from_dlpack: tensor must be of a scalar element type, got 4 lanes");
  s.type = {kDlFloat4E2m1fn, 4, 4};
  EXPECT_EQ(s.refusal(), "from_dlpack: tensor must be of a scalar element type, got 4 lanes");
  s.type = {kDLFloat, 32, 1};
  s.shape = {1, 1, 1, 1, 1, 1};
  EXPECT_EQ(s.refusal(), "from_dlpack: tensor must be of at most 5 dimensions, got 6");
  s.shape = {2, -3};
  EXPECT_EQ(s.refusal(), "TensorView: shape must be of sizes of at least 0, got [2, -3]");
}

}  // namespace
}  // namespace tilewise
