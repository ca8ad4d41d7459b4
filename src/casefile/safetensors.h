// The safetensors format: 8 bytes of header length (little-endian), a header of JSON, then the tensors'
// elements. The header names each tensor's element type, shape and place among the data; "__metadata__" maps
// names to texts.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::casefile {

struct StoredTensor {
  std::string dtype;  // the format's name, such as "BF16"
  std::vector<int64_t> shape;
  int64_t begin = 0;  // of its bytes in the data
  int64_t end = 0;
};

struct SafeTensors {
  std::map<std::string, std::string> metadata;
  std::map<std::string, StoredTensor> tensors;
  std::span<const uint8_t> data;
};

/// The format's name for an element type. Types that it lacks are stored as bytes.
const char* stored_type(DType type);

/// All that comes before the data, for tensors that lie in the data one after another.
std::string safetensors_header(const std::map<std::string, std::string>& metadata,
                               const std::vector<std::pair<std::string, StoredTensor>>& tensors);

/// Reads a whole file. Throws BadContents unless the tensors fill the data without gaps and overlaps.
SafeTensors read_safetensors(std::span<const uint8_t> file);

}  // namespace tilewise::casefile
