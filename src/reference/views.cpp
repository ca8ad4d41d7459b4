// Reading elements of TensorViews as plain floats.
#include "reference/views.h"

#include <array>
#include <stdexcept>
#include <string>

#include "core/numeric.h"
#include "reference/small_floats.h"

namespace tilewise::reference {

void read_floats(const TensorView& view, int64_t offset, int64_t count, float* out) {
  switch (view.dtype()) {
    case DType::kFP32:
      for (int64_t i = 0; i < count; ++i) out[i] = view.data_as<float>()[offset + i];
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_bits_to_f32(view.data_as<uint16_t>()[offset + i]);
      return;
    case DType::kFP16:
      for (int64_t i = 0; i < count; ++i) out[i] = f16_bits_to_f32(view.data_as<uint16_t>()[offset + i]);
      return;
    case DType::kE4M3:
      for (int64_t i = 0; i < count; ++i) out[i] = E4m3::get().value(view.data_as<uint8_t>()[offset + i]);
      return;
    default:
      throw std::invalid_argument("reference: " + to_string(view) + " holds no floats");
  }
}

std::vector<float> to_floats(const TensorView& view) {
  std::vector<float> values(static_cast<size_t>(view.numel()));
  std::array<int64_t, TensorView::kMaxRank> index{};
  for (float& value : values) {
    int64_t offset = 0;
    for (int dim = 0; dim < view.rank(); ++dim) offset += index[static_cast<size_t>(dim)] * view.stride(dim);
    read_floats(view, offset, 1, &value);
    for (int dim = view.rank() - 1; dim >= 0; --dim) {
      if (++index[static_cast<size_t>(dim)] < view.size(dim)) break;
      index[static_cast<size_t>(dim)] = 0;
    }
  }
  return values;
}

std::vector<float> heads_last(const TensorView& view) {
  const std::array<int64_t, 3> shape = {view.size(0), view.size(2), view.size(1)};
  const std::array<int64_t, 3> strides = {view.stride(0), view.stride(2), view.stride(1)};
  return to_floats(TensorView(view.data(), view.dtype(), shape, strides, view.device()));
}

float float_at(const TensorView& view, int64_t i) {
  float value = 0;
  read_floats(view, i * view.stride(0), 1, &value);
  return value;
}

int64_t int_at(const TensorView& view, int64_t i) { return view.data_as<int32_t>()[i * view.stride(0)]; }

}  // namespace tilewise::reference
