// Memory of a case's tensors: aligned, with margins on both sides that show writes out of bounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::cases {

// A piece of memory that begins `offset` bytes past a 64-byte boundary. A copy has its own memory. While the
// address sanitizer is on, the margins can only be touched through whole().
class Buffer {
 public:
  static constexpr int64_t kMargin = 256;

  Buffer() : Buffer(0, 0) {}
  Buffer(int64_t bytes, int64_t offset);
  Buffer(const Buffer& other);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(const Buffer& other);
  Buffer& operator=(Buffer&&) noexcept = default;
  ~Buffer() = default;

  uint8_t* data() const { return memory_.get() + kMargin + offset_; }
  int64_t bytes() const { return bytes_; }

  // Lets `use` touch everything, margins included: data() is at [before()] of what it is given.
  int64_t before() const { return kMargin + offset_; }
  int64_t whole_bytes() const { return bytes_ + before() + kMargin; }
  void whole(const std::function<void(uint8_t*)>& use) const;

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  void guard() const;
  void open() const;

  int64_t bytes_ = 0;
  int64_t offset_ = 0;
  std::unique_ptr<uint8_t, Free> memory_;
};

enum class Role {
  kInput,
  kOutput,  // what it holds before a call does not matter
  kInOut,
};

// One tensor of a call and the memory that it is a view of.
struct Operand {
  std::string name;  // of the argument
  Role role = Role::kInput;
  Buffer memory;
  TensorView view;
  std::vector<uint8_t> initial;  // of kOutput and kInOut: the whole memory before a call
};

// Calls `visit(first byte, bytes)` for every contiguous run of the view's elements, in order of the elements'
// indices within a run; runs do not overlap unless elements do.
void for_each_run(const TensorView& view, const std::function<void(uint8_t*, int64_t)>& visit);

// The elements' bytes, one run after another.
std::vector<uint8_t> contents(const TensorView& view);

// Elements of these bytes are -0.0, or odd to see where they are integers; shorter types repeat them.
std::array<uint8_t, 4> canary(DType type);

// Fills the whole memory with a pattern (-0.0 for floats) that an output may not disturb outside its
// elements.
void fill_with_canaries(Operand& operand);

// Whether all bytes outside the view's elements are as `initial` has them.
bool surroundings_hold(const Operand& operand);

}  // namespace tilewise::cases
