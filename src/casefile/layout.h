// The metadata of a case file: names, versions, and how element types are called.
#pragma once

#include <cstdint>

#include "tilewise/tensor.h"

namespace tilewise::casefile {

// Keys of the metadata.
inline constexpr const char* kVersionKey = "tilewise_case";
inline constexpr const char* kOperatorKey = "operator";
inline constexpr const char* kOptionsKey = "options";  // JSON: name -> value
inline constexpr const char* kTensorsKey = "tensors";  // JSON: name -> dtype, shape, strides, memory, at
inline constexpr const char* kMemoryKey = "memory";    // JSON: list of bytes and past
inline constexpr const char* kDataKey = "data";

inline constexpr const char* kVersion = "1";
inline constexpr const char* kDataSaved = "saved";
inline constexpr const char* kDataLeftOut = "left out";

// Addresses are kept modulo this, so that what is refused as misaligned stays so.
inline constexpr int64_t kAddressUnit = 64;

inline constexpr DType kAllTypes[] = {
    DType::kBF16,  DType::kFP16, DType::kFP32,  DType::kE4M3, DType::kUE8M0, DType::kE2M1x2, DType::kInt32,
    DType::kUInt8, DType::kInt8, DType::kInt64, DType::kFP64, DType::kBool,  DType::kUnknown};

}  // namespace tilewise::casefile
