// Conversions between torch's stable values and the library's types.
#include "convert.h"

#include <fmt/format.h>
#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/headeronly/core/ScalarType.h>

#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/row_major.h"
#include "tilewise/error.h"

namespace tilewise::bindings {
namespace {

using torch::stable::detail::to;

template <class T>
StableIValue on_stack(T value) {
  return torch::stable::detail::from(value);
}

/// torch's codes of the element types, both ways.
class TypeCodes {
 public:
  TypeCodes() {
    types_.fill(DType::kUnknown);
    add(aoti_torch_dtype_bfloat16(), DType::kBF16);
    add(aoti_torch_dtype_float16(), DType::kFP16);
    add(aoti_torch_dtype_float32(), DType::kFP32);
    add(aoti_torch_dtype_float8_e4m3fn(), DType::kE4M3);
    add(aoti_torch_dtype_int32(), DType::kInt32);
    add(aoti_torch_dtype_uint8(), DType::kUInt8);
    add(aoti_torch_dtype_int8(), DType::kInt8);
    add(aoti_torch_dtype_int64(), DType::kInt64);
    add(aoti_torch_dtype_float64(), DType::kFP64);
    add(aoti_torch_dtype_bool(), DType::kBool);
    // The oldest release that we load into has no function that tells these two.
    add(static_cast<int32_t>(torch::headeronly::ScalarType::Float8_e8m0fnu), DType::kUE8M0);
    add(static_cast<int32_t>(torch::headeronly::ScalarType::Float4_e2m1fn_x2), DType::kE2M1x2);
  }

  DType type_of(int32_t code) const {
    const auto i = static_cast<size_t>(code);
    return i < types_.size() ? types_[i] : DType::kUnknown;
  }
  int32_t code_of(DType type) const { return codes_.at(static_cast<size_t>(type)); }

 private:
  void add(int32_t code, DType type) {
    types_.at(static_cast<size_t>(code)) = type;
    codes_.at(static_cast<size_t>(type)) = code;
  }

  std::array<DType, 128> types_{};
  std::array<int32_t, static_cast<size_t>(DType::kUnknown) + 1> codes_{};
};

const TypeCodes& type_codes() {
  static const TypeCodes codes;
  return codes;
}

/// torch's own conversion loses the memory of every string that it makes.
std::string take_string(StringHandle handle) {
  const std::unique_ptr<StringOpaque, void (*)(StringHandle)> owner(
      handle, [](StringHandle string) { torch_delete_string(string); });
  size_t length = 0;
  const char* text = nullptr;
  check_torch(torch_string_length(handle, &length), "string_length");
  check_torch(torch_string_c_str(handle, &text), "string_c_str");
  return {text, length};
}

DeviceId device_of(AtenTensorHandle tensor) {
  static const int32_t cuda = aoti_torch_device_type_cuda();
  int32_t type = 0;
  int32_t index = 0;
  check_torch(aoti_torch_get_device_type(tensor, &type), "get_device_type");
  if (type != cuda) return {};
  check_torch(aoti_torch_get_device_index(tensor, &index), "get_device_index");
  return {DeviceType::kCuda, index};
}

std::vector<std::string_view> record_names() {
  std::vector<std::string_view> names;
  for (Record record : all_records()) names.emplace_back(record_name(record));
  return names;
}

}  // namespace

void check_torch(AOTITorchError error, const char* call) {
  if (error != AOTI_TORCH_SUCCESS) throw Error(fmt::format("torch's {} failed", call));
}

TensorView view_of(AtenTensorHandle tensor, bool written) {
  int64_t rank = 0;
  int64_t* shape = nullptr;
  int64_t* strides = nullptr;
  int32_t code = 0;
  check_torch(aoti_torch_get_dim(tensor, &rank), "get_dim");
  check_torch(aoti_torch_get_sizes(tensor, &shape), "get_sizes");
  check_torch(aoti_torch_get_strides(tensor, &strides), "get_strides");
  check_torch(aoti_torch_get_dtype(tensor, &code), "get_dtype");
  const void* data = nullptr;
  if (written) {
    void* memory = nullptr;
    check_torch(torch_get_mutable_data_ptr(tensor, &memory), "get_mutable_data_ptr");
    data = memory;
  } else {
    check_torch(torch_get_const_data_ptr(tensor, &data), "get_const_data_ptr");
  }
  const auto n = static_cast<size_t>(rank);
  return TensorView(data, type_codes().type_of(code), {shape, n}, {strides, n}, device_of(tensor));
}

StableIValue Inputs::next() {
  if (taken_ >= count_)
    throw Error(fmt::format("{}: the schema has {} arguments, the code more", op_, count_));
  return stack_[taken_++];
}

TensorView Inputs::own(const char* name, AtenTensorHandle tensor, bool written) {
  tensors_.at(num_tensors_++).reset(tensor);
  last_ = tensor;
  bool is_defined = false;
  check_torch(aoti_torch_is_defined(tensor, &is_defined), "is_defined");
  if (!is_defined) {
    if (refusal_.empty()) refusal_ = fmt::format("{}: {} must be a tensor, got None", op_, name);
    return {};
  }
  try {
    TensorView view = view_of(tensor, written);
    if (!has_device_) device_ = view.device();
    has_device_ = true;
    return view;
  } catch (const InvalidArgument& error) {
    // The view's own refusals name neither operator nor argument.
    const std::string_view text = error.what();
    if (refusal_.empty()) refusal_ = fmt::format("{}: {}{}", op_, name, text.substr(text.find(" must be ")));
    return {};
  }
}

TensorView Inputs::take_tensor(const char* name, bool written) {
  return own(name, to<AtenTensorHandle>(next()), written);
}

namespace {

bool lies_as_a_matrix(const TensorView& view) {
  constexpr int64_t kUnit = 16;  // bytes
  if (view.numel() == 0 || view.rank() == 0) return true;
  const int last = view.rank() - 1;
  if (view.size(last) > 1 && view.stride(last) != 1) return false;
  bool whole = reinterpret_cast<uintptr_t>(view.data()) % kUnit == 0;
  for (int i = 0; i < last; ++i) {
    whole = whole && (view.size(i) == 1 || view.stride(i) * size_of(view.dtype()) % kUnit == 0);
  }
  return whole;
}

}  // namespace

TensorView Inputs::gradient(const char* name) {
  const TensorView given = tensor(name);
  if (!given || lies_as_a_matrix(given)) return given;
  const auto strides = row_major_strides(given.shape());
  OwnedTensor copy =
      new_tensor(given.device(), given.dtype(), given.shape().data(), strides.data(), given.rank());
  check_torch(aoti_torch_copy_(copy.get(), last_, 0), "copy_");
  return own(name, copy.release(), false);
}

TensorView Inputs::take_optional_tensor(const char* name, bool written) {
  const auto tensor = to<std::optional<AtenTensorHandle>>(next());
  last_ = nullptr;
  return tensor ? own(name, *tensor, written) : TensorView();
}

int64_t Inputs::integer() { return to<int64_t>(next()); }
bool Inputs::boolean() { return to<bool>(next()); }
float Inputs::number() { return static_cast<float>(to<double>(next())); }
std::optional<int64_t> Inputs::optional_integer() { return to<std::optional<int64_t>>(next()); }

std::optional<float> Inputs::optional_number() {
  const auto value = to<std::optional<double>>(next());
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

Record Inputs::named_record(const char* name, const std::string& text) {
  if (const auto record = record_from_name(text)) return *record;
  refuse(name, either_of(record_names()), fmt::format("'{}'", text));
  return Record::kAuto;
}

Record Inputs::record(const char* name) { return named_record(name, take_string(to<StringHandle>(next()))); }

Record Inputs::optional_record(const char* name) {
  const auto given = to<std::optional<StringHandle>>(next());
  if (!given) return Record::kAuto;
  const std::string text = take_string(*given);
  return text == "auto" ? Record::kAuto : named_record(name, text);
}

Window Inputs::window(const char* name) {
  const auto sides = to<std::vector<int64_t>>(next());
  if (sides.size() == 2) return {sides[0], sides[1]};
  refuse(name, "a pair of numbers of at least -1", fmt::format("({})", fmt::join(sides, ", ")));
  return {};
}

void Inputs::refuse(const char* name, const std::string& expected, const std::string& got) {
  if (refusal_.empty()) refusal_ = fmt::format("{}: {} must be {}, got {}", op_, name, expected, got);
}

void Inputs::must_be(const char* name, int64_t value, int64_t expected) {
  if (value != expected) refuse(name, std::to_string(expected), std::to_string(value));
}

void Inputs::must_be_bool(const char* name, bool value, bool expected) {
  const auto text = [](bool b) { return b ? "True" : "False"; };
  if (value != expected) refuse(name, text(expected), text(value));
}

void Inputs::finish() const {
  if (taken_ != count_)
    throw Error(fmt::format("{}: the schema has {} arguments, the code {}", op_, count_, taken_));
  if (!refusal_.empty()) throw InvalidArgument(refusal_);
}

OwnedTensor new_tensor(DeviceId device, DType type, const int64_t* shape, const int64_t* strides, int rank) {
  const int32_t device_type =
      device.type == DeviceType::kCuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
  AtenTensorHandle tensor = nullptr;
  check_torch(aoti_torch_empty_strided(rank, shape, strides, type_codes().code_of(type), device_type,
                                       device.index, &tensor),
              "empty_strided");
  return OwnedTensor(tensor);
}

TensorView Outputs::empty(DType type, std::initializer_list<int64_t> shape) {
  const auto strides = row_major_strides({shape.begin(), shape.size()});
  tensors_.at(num_tensors_) =
      new_tensor(device_, type, shape.begin(), strides.data(), static_cast<int>(shape.size()));
  return view_of(tensors_[num_tensors_++].get(), true);
}

TensorView Outputs::empty_strided(DType type, std::initializer_list<int64_t> shape,
                                  std::initializer_list<int64_t> strides) {
  tensors_.at(num_tensors_) =
      new_tensor(device_, type, shape.begin(), strides.begin(), static_cast<int>(shape.size()));
  return view_of(tensors_[num_tensors_++].get(), true);
}

void Outputs::nothing() {
  // A tensor of its own, but the storage, of no bytes, is that of the last call's output in the same place:
  // a new one takes as long as that of a real output.
  static thread_local std::map<std::tuple<DeviceType, int32_t, size_t>, OwnedTensor> kept;
  constexpr int64_t kSize = 0;
  constexpr int64_t kStride = 1;
  OwnedTensor& last = kept[{device_.type, device_.index, num_tensors_}];
  if (!last) last = new_tensor(device_, DType::kFP32, &kSize, &kStride, 1);
  AtenTensorHandle handle = nullptr;
  check_torch(aoti_torch__reinterpret_tensor(last.get(), 1, &kSize, &kStride, 0, &handle),
              "reinterpret_tensor");
  tensors_.at(num_tensors_++).reset(handle);
}

void Outputs::same(AtenTensorHandle tensor) {
  AtenTensorHandle handle = nullptr;
  if (tensor != nullptr) check_torch(aoti_torch_new_tensor_handle(tensor, &handle), "new_tensor_handle");
  tensors_.at(num_tensors_++).reset(handle);
}

void Outputs::give(StableIValue* stack, size_t first_optional) {
  for (size_t i = 0; i < num_tensors_; ++i) {
    if (i < first_optional) {
      stack[i] = on_stack(tensors_[i].release());
    } else if (tensors_[i]) {
      stack[i] = on_stack(std::optional<AtenTensorHandle>(tensors_[i].release()));
    } else {
      stack[i] = on_stack(std::optional<AtenTensorHandle>());
    }
  }
}

void Outputs::give_list(StableIValue* stack) {
  StableListHandle list = nullptr;
  check_torch(torch_new_list_reserve_size(num_tensors_, &list), "new_list");
  for (size_t i = 0; i < num_tensors_; ++i) {
    check_torch(torch_list_push_back(list, on_stack(tensors_[i].release())), "list_push_back");
  }
  stack[0] = on_stack(list);
}

}  // namespace tilewise::bindings
