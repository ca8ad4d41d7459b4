// The checker of an operator's arguments. Every refusal goes through it and has one form:
// "<operator>: <argument> must be <expected>, got <what came>".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "tilewise/error.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Largest size of a dimension that kernels count, so that products of two of them fit into 64 bits.
inline constexpr int64_t kMaxCount = INT32_MAX;

/// One dimension of an expected shape: a number, one of two numbers, or a free size that has a name.
class Dim {
 public:
  Dim(int64_t size) : size_(size), other_(size) {}
  Dim(int size) : Dim(static_cast<int64_t>(size)) {}
  Dim(const char* name) : name_(name) {}
  static Dim either(int64_t size, int64_t other);

  bool accepts(int64_t size) const { return name_ != nullptr || size == size_ || size == other_; }
  std::string text() const;

 private:
  const char* name_ = nullptr;
  int64_t size_ = 0;
  int64_t other_ = 0;
};

/// Which strides a tensor may have.
enum class Layout {
  kRows,        ///< the last dimension has stride 1; matrices of 8 and 16 bits: the others are whole 16 bytes
  kContiguous,  ///< no gaps
  kOwn,         ///< the caller of the checker judges the strides
};

class Checker {
 public:
  /// `op` must outlive the checker, as must all names and views given to it.
  Checker(const char* op, DeviceId device) : op_(op), device_(device) {}

  /// An argument that must be there: type and shape, then device, address and strides. `condition` ends the
  /// expectation, for example "for record v4_fp8".
  void input(const char* name, const TensorView& view, std::initializer_list<DType> types,
             std::initializer_list<Dim> shape, Layout layout = Layout::kRows,
             std::string_view condition = {});
  /// The same for a tensor that the operator writes.
  void output(const char* name, const TensorView& view, std::initializer_list<DType> types,
              std::initializer_list<Dim> shape, Layout layout = Layout::kRows,
              std::string_view condition = {});
  /// Refuses outputs of which two elements share memory, or which share any with another tensor. Called last.
  void no_overlaps() const;

  /// A view that must be there (`condition` true) or must not be.
  void given(const char* name, const TensorView& view, std::string_view condition = {}) const;
  void left_out(const char* name, const TensorView& view, std::string_view condition = {}) const;
  /// The first byte must lie at a multiple of `bytes`. Nothing is asked of a view without elements.
  void aligned(const char* name, const TensorView& view, int64_t bytes) const;
  /// A size that kernels count: `least` to kMaxCount. `dim` is the dimension's name.
  void count(const char* name, const char* dim, int64_t size, int64_t least = 0) const;

  [[noreturn]] void refuse(std::string_view argument, std::string_view expected, std::string_view got) const;
  const char* op() const { return op_; }

 private:
  struct Seen {
    const char* name;
    const TensorView* view;
    bool written;
  };
  static constexpr size_t kMaxTensors = 24;

  void tensor(const char* name, const TensorView& view, std::initializer_list<DType> types,
              std::initializer_list<Dim> shape, Layout layout, std::string_view condition, bool written);
  void strides(const char* name, const TensorView& view, Layout layout) const;

  const char* op_;
  DeviceId device_;
  std::array<Seen, kMaxTensors> seen_{};
  size_t num_seen_ = 0;
};

/// "a", "a or b", "a, b or c".
std::string either_of(std::span<const std::string_view> names);

}  // namespace tilewise
