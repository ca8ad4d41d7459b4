// From torch's call stack to the library's views and options, and from freshly made outputs back to the
// stack. Everything goes through torch's stable C interface.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "tilewise/kv_format.h"
#include "tilewise/mask.h"
#include "tilewise/tensor.h"

namespace tilewise::bindings {

struct DeleteTensor {
  void operator()(AtenTensorHandle tensor) const { aoti_torch_delete_tensor_object(tensor); }
};
using OwnedTensor = std::unique_ptr<AtenTensorOpaque, DeleteTensor>;

/// Raises std::runtime_error when a function of torch's C interface failed; `call` says which.
void check_torch(AOTITorchError error, const char* call);

/// A tensor's type, shape, strides, device and memory. `written`: it is an output. Throws InvalidArgument.
TensorView view_of(AtenTensorHandle tensor, bool written);

/// The size of dimension `dim`, 0 where the view has none: outputs are allocated before the library has
/// judged the inputs, and every refusal is the library's.
inline int64_t size_or_zero(const TensorView& view, int dim) {
  return dim < view.rank() ? view.size(dim) : 0;
}

/// The arguments of a boxed call, to be taken one by one in the order of the schema. Owns what it has taken.
/// Nothing is refused before finish(), so that every argument finds its owner.
class Inputs {
 public:
  Inputs(const char* op, StableIValue* stack, uint64_t count) : op_(op), stack_(stack), count_(count) {}
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  TensorView tensor(const char* name) { return take_tensor(name, false); }
  TensorView optional_tensor(const char* name) { return take_optional_tensor(name, false); }
  /// A gradient that autograd hands over, which may be any view: a copy where operators do not take a matrix
  /// that lies in memory like that. Only here is that known: a compiled graph sees no addresses.
  TensorView gradient(const char* name);
  TensorView output(const char* name) { return take_tensor(name, true); }
  TensorView optional_output(const char* name) { return take_optional_tensor(name, true); }

  int64_t integer();
  bool boolean();
  float number();
  std::optional<int64_t> optional_integer();
  std::optional<float> optional_number();
  Record record(const char* name);
  Record optional_record(const char* name);  ///< kAuto: left out
  Window window(const char* name);

  /// Refuses an argument; the first refusal is the one that finish() raises.
  void refuse(const char* name, const std::string& expected, const std::string& got);
  void must_be(const char* name, int64_t value, int64_t expected);
  void must_be_bool(const char* name, bool value, bool expected);

  /// After the last argument. Throws InvalidArgument.
  void finish() const;

  const char* op() const { return op_; }
  /// Where the first tensor lies.
  DeviceId device() const { return device_; }
  /// The handle of the tensor taken last; null where an optional one was left out.
  AtenTensorHandle last_handle() const { return last_; }

 private:
  static constexpr size_t kMaxTensors = 24;

  StableIValue next();
  TensorView take_tensor(const char* name, bool written);
  TensorView take_optional_tensor(const char* name, bool written);
  TensorView own(const char* name, AtenTensorHandle tensor, bool written);
  Record named_record(const char* name, const std::string& text);

  const char* op_;
  StableIValue* stack_;
  uint64_t count_;
  uint64_t taken_ = 0;
  std::array<OwnedTensor, kMaxTensors> tensors_;
  size_t num_tensors_ = 0;
  AtenTensorHandle last_ = nullptr;
  DeviceId device_;
  bool has_device_ = false;
  std::string refusal_;
};

/// What a boxed call returns, in the order of the schema.
class Outputs {
 public:
  explicit Outputs(DeviceId device) : device_(device) {}

  /// A new tensor without gaps, or with the strides given.
  TensorView empty(DType type, std::initializer_list<int64_t> shape);
  TensorView empty_strided(DType type, std::initializer_list<int64_t> shape,
                           std::initializer_list<int64_t> strides);
  /// Instead of an output that the call does not ask for: a tensor without elements.
  void nothing();
  /// The caller's tensor or nothing (null), to be returned as it is.
  void same(AtenTensorHandle tensor);

  /// Moves everything onto the stack: as single values, the ones from `first_optional` on as optional ones;
  /// or as one list of tensors.
  void give(StableIValue* stack, size_t first_optional = kMaxTensors);
  void give_list(StableIValue* stack);

  AtenTensorHandle handle(size_t i) const { return tensors_.at(i).get(); }

 private:
  static constexpr size_t kMaxTensors = 8;

  DeviceId device_;
  std::array<OwnedTensor, kMaxTensors> tensors_;
  size_t num_tensors_ = 0;
};

/// A new tensor of given strides.
OwnedTensor new_tensor(DeviceId device, DType type, const int64_t* shape, const int64_t* strides, int rank);

}  // namespace tilewise::bindings
