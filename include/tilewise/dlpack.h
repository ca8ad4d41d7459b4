// TensorView from a DLPack tensor. Kept apart so that only those who use DLPack need its header.
#pragma once

#include <dlpack/dlpack.h>

#include "tilewise/tensor.h"

namespace tilewise {

/// Views a DLPack tensor's memory (DLPack 0.6 and newer, the FP8 and FP4 codes of 1.1 included).
/// The tensor must outlive the view. Null strides mean row-major.
/// Throws InvalidArgument for devices other than CPU and CUDA, for vector types (lanes != 1, but for
/// 4-bit floats with two lanes) and for more than TensorView::kMaxRank dimensions; an element type that the
/// library has no name for becomes DType::kUnknown, which every operator refuses.
TensorView from_dlpack(const DLTensor& tensor);

}  // namespace tilewise
