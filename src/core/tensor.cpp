// Views and element types.
#include "tilewise/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/row_major.h"
#include "tilewise/error.h"

namespace tilewise {
namespace {

struct TypeInfo {
  const char* name;
  int64_t bytes;
};

// In the order of DType's values.
constexpr TypeInfo kTypes[] = {
    {"bfloat16", 2},        {"float16", 2},        {"float32", 4},
    {"float8_e4m3fn", 1},   {"float8_e8m0fnu", 1}, {"float4_e2m1fn_x2", 1},
    {"int32", 4},           {"uint8", 1},          {"int8", 1},
    {"int64", 8},           {"float64", 8},        {"bool", 1},
    {"an unknown type", 0},
};

const TypeInfo& info(DType type) {
  const auto id = static_cast<size_t>(type);
  return kTypes[std::min(id, std::size(kTypes) - 1)];
}

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw InvalidArgument(fmt::format("TensorView: shape must be {}, got {}", expected, got));
}

std::string list(std::span<const int64_t> sizes) { return fmt::format("[{}]", fmt::join(sizes, ", ")); }

// Refuses views whose element count, bytes or distances between elements leave 64 bits, so that nobody who
// computes with them later has to ask.
void check_sizes(DType type, std::span<const int64_t> shape, std::span<const int64_t> strides) {
  for (int64_t size : shape) {
    if (size < 0) refuse("of sizes of at least 0", list(shape));
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  int64_t bytes = std::max<int64_t>(1, size_of(type));
  int64_t extent = bytes;
  bool overflow = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    overflow |= __builtin_mul_overflow(bytes, shape[i], &bytes);
    if (shape[i] == 1 || overflow) continue;
    int64_t step = 0;
    overflow |= strides[i] == INT64_MIN || __builtin_mul_overflow(std::abs(strides[i]), shape[i] - 1, &step);
    overflow |= __builtin_mul_overflow(step, std::max<int64_t>(1, size_of(type)), &step);
    overflow |= __builtin_add_overflow(extent, step, &extent);
  }
  if (overflow) {
    refuse("of less than 2^63 bytes",
           fmt::format("{} {} with strides {}", to_string(type), list(shape), list(strides)));
  }
}

}  // namespace

int64_t size_of(DType type) { return info(type).bytes; }

const char* to_string(DType type) { return info(type).name; }

TensorView::TensorView(const void* data, DType type, std::initializer_list<int64_t> shape, DeviceId device) {
  const std::span<const int64_t> sizes(shape.begin(), shape.size());
  const auto strides = row_major_strides(sizes);
  *this =
      TensorView(data, type, sizes, std::span(strides).first(std::min(sizes.size(), strides.size())), device);
}

TensorView::TensorView(const void* data, DType type, std::span<const int64_t> shape,
                       std::span<const int64_t> strides, DeviceId device)
    : data_(const_cast<void*>(data)), dtype_(type), device_(device) {
  if (shape.size() > kMaxRank) {
    refuse(fmt::format("of at most {} dimensions", kMaxRank), fmt::format("{} of them", shape.size()));
  }
  if (shape.size() != strides.size()) {
    refuse("as long as strides", fmt::format("{} sizes and {} strides", shape.size(), strides.size()));
  }
  check_sizes(type, shape, strides);
  rank_ = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), shape_.begin());
  std::copy(strides.begin(), strides.end(), strides_.begin());
}

int64_t TensorView::numel() const {
  if (!present()) return 0;
  if (std::find(shape_.begin(), shape_.begin() + rank_, 0) != shape_.begin() + rank_) return 0;
  int64_t count = 1;
  for (int64_t size : shape()) count *= size;
  return count;
}

bool TensorView::is_contiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (size(i) == 1) continue;
    if (stride(i) != expected) return false;
    expected *= size(i);
  }
  return true;
}

std::string to_string(const TensorView& view) {
  if (!view) return "nothing";
  return fmt::format("{} {}", to_string(view.dtype()), list(view.shape()));
}

}  // namespace tilewise
