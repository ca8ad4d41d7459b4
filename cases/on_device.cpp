// Arguments whose views name another device.
#include "casefile/fields.h"
#include "cases/gpu.h"

namespace tilewise::cases {
namespace {

struct Retag {
  DeviceId device;

  void tensor(const char*, TensorView& view, casefile::Access) const {
    if (view) view = TensorView(view.data(), view.dtype(), view.shape(), view.strides(), device);
  }
  template <class T>
  void option(const char*, const T&) const {}
};

}  // namespace

Args on_device(const Args& args, DeviceId device) {
  Args tagged = args;
  std::visit([&](auto& a) { casefile::each_field(a, Retag{device}); }, tagged);
  return tagged;
}

}  // namespace tilewise::cases
