// TensorView: a typed, strided, non-owning view of memory on some device.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "tilewise/device.h"

namespace tilewise {

/// Element types. The last four are known only so that an error can name what came.
enum class DType : int32_t {
  kBF16 = 0,
  kFP16 = 1,
  kFP32 = 2,
  kE4M3 = 3,    ///< float8_e4m3fn
  kUE8M0 = 4,   ///< an exponent byte, value 2^(b-127)
  kE2M1x2 = 5,  ///< two fp4 values in a byte, the even element in the low nibble
  kInt32 = 6,
  kUInt8 = 7,
  kInt8 = 8,
  kInt64 = 9,
  kFP64 = 10,
  kBool = 11,
  kUnknown = 12,
};

/// Bytes of one element (of one pair for kE2M1x2).
int64_t size_of(DType type);

/// torch's name of the type: "bfloat16", "float8_e4m3fn", "int32", ...
const char* to_string(DType type);

/// A view of up to five dimensions. Shape and strides count elements. A default-made view is "absent",
/// which is how an optional argument is left out. The view does not own or keep alive its memory.
class TensorView {
 public:
  static constexpr int kMaxRank = 5;

  TensorView() = default;

  /// Contiguous (row-major) view.
  /// Throws InvalidArgument on more than kMaxRank dimensions, a negative size, or a size in bytes past 2^63.
  TensorView(const void* data, DType type, std::initializer_list<int64_t> shape, DeviceId device = {});

  /// View with explicit strides (in elements, one per dimension). Throws as above, and when the counts
  /// differ.
  TensorView(const void* data, DType type, std::span<const int64_t> shape, std::span<const int64_t> strides,
             DeviceId device = {});

  bool present() const { return rank_ >= 0; }
  explicit operator bool() const { return present(); }

  void* data() const { return data_; }
  template <class T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  DeviceId device() const { return device_; }
  int rank() const { return rank_ < 0 ? 0 : rank_; }
  int64_t size(int dim) const { return shape_[static_cast<size_t>(dim)]; }
  int64_t stride(int dim) const { return strides_[static_cast<size_t>(dim)]; }
  std::span<const int64_t> shape() const { return {shape_.data(), static_cast<size_t>(rank())}; }
  std::span<const int64_t> strides() const { return {strides_.data(), static_cast<size_t>(rank())}; }
  int64_t numel() const;
  /// Row-major without gaps (dimensions of size 1 do not matter; true when there is no element).
  bool is_contiguous() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kUnknown;
  DeviceId device_;
  int rank_ = -1;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> strides_{};
};

/// "bfloat16 [2, 1, 64, 576]", or "nothing" for an absent view.
std::string to_string(const TensorView& view);

}  // namespace tilewise
