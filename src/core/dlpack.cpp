// DLPack tensors as views. The codes of DLPack 1.x are spelled out, so that an older header serves as well.
#include "tilewise/dlpack.h"

#include <fmt/format.h>

#include <cstddef>
#include <span>
#include <string>

#include "core/row_major.h"
#include "tilewise/error.h"

namespace tilewise {
namespace {

enum LaterCode : uint8_t { kBoolean = 6, kFloat8E4m3fn = 10, kFloat8E8m0fnu = 14, kFloat4E2m1fn = 17 };

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw InvalidArgument(fmt::format("from_dlpack: tensor must be {}, got {}", expected, got));
}

DType type_of(DLDataType type) {
  switch (type.code) {
    case kDLBfloat:
      return type.bits == 16 ? DType::kBF16 : DType::kUnknown;
    case kDLFloat:
      return type.bits == 16   ? DType::kFP16
             : type.bits == 32 ? DType::kFP32
             : type.bits == 64 ? DType::kFP64
                               : DType::kUnknown;
    case kDLInt:
      return type.bits == 8    ? DType::kInt8
             : type.bits == 32 ? DType::kInt32
             : type.bits == 64 ? DType::kInt64
                               : DType::kUnknown;
    case kDLUInt:
      return type.bits == 8 ? DType::kUInt8 : DType::kUnknown;
    case kBoolean:
      return type.bits == 8 ? DType::kBool : DType::kUnknown;
    case kFloat8E4m3fn:
      return type.bits == 8 ? DType::kE4M3 : DType::kUnknown;
    case kFloat8E8m0fnu:
      return type.bits == 8 ? DType::kUE8M0 : DType::kUnknown;
    case kFloat4E2m1fn:
      return type.bits == 4 && type.lanes == 2 ? DType::kE2M1x2 : DType::kUnknown;
    default:
      return DType::kUnknown;
  }
}

DeviceId device_of(DLDevice device) {
  if (device.device_type == kDLCPU) return {DeviceType::kCpu, 0};
  if (device.device_type == kDLCUDA) return {DeviceType::kCuda, device.device_id};
  refuse("on cpu or cuda", fmt::format("DLPack device type {}", static_cast<int>(device.device_type)));
}

}  // namespace

TensorView from_dlpack(const DLTensor& tensor) {
  const DeviceId device = device_of(tensor.device);
  if (tensor.ndim < 0 || tensor.ndim > TensorView::kMaxRank) {
    refuse(fmt::format("of at most {} dimensions", TensorView::kMaxRank), fmt::format("{}", tensor.ndim));
  }
  const DType type = type_of(tensor.dtype);
  if (tensor.dtype.lanes != 1 && type != DType::kE2M1x2) {
    refuse("of a scalar element type", fmt::format("{} lanes", tensor.dtype.lanes));
  }
  const auto rank = static_cast<size_t>(tensor.ndim);
  const std::span<const int64_t> shape(tensor.shape, rank);
  const void* data = tensor.data;
  if (data != nullptr) data = static_cast<const std::byte*>(data) + tensor.byte_offset;
  const auto row_major = row_major_strides(shape);
  const int64_t* strides = tensor.strides != nullptr ? tensor.strides : row_major.data();
  return {data, type, shape, std::span<const int64_t>(strides, rank), device};
}

}  // namespace tilewise
