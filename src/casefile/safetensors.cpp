// Reading and writing of safetensors headers.
#include "casefile/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "casefile/json.h"

namespace tilewise::casefile {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "files hold the elements as memory does");

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 8;  // of the data in the file
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct StoredType {
  const char* name;
  int64_t bytes;
};

constexpr StoredType kStoredTypes[] = {{"BF16", 2},    {"F16", 2},     {"F32", 4}, {"F64", 8},
                                       {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I8", 1},  {"U8", 1},
                                       {"I32", 4},     {"I64", 8},     {"BOOL", 1}};

int64_t element_bytes(const std::string& dtype, const std::string& part) {
  for (const StoredType& type : kStoredTypes) {
    if (dtype == type.name) return type.bytes;
  }
  std::vector<const char*> names;
  for (const StoredType& type : kStoredTypes) names.push_back(type.name);
  throw BadContents(part + ": dtype", fmt::format("one of {}", fmt::join(names, ", ")), shown(dtype));
}

int64_t bytes_of(const StoredTensor& tensor, const std::string& part) {
  int64_t bytes = element_bytes(tensor.dtype, part);
  bool fits = true;
  for (const int64_t size : tensor.shape) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return 0;
  if (!fits) throw BadContents(part + ": shape", "of less than 2^63 bytes", shown(tensor.shape));
  return bytes;
}

StoredTensor read_tensor(const json& entry, const std::string& part, int64_t data_bytes) {
  must_be_object(entry, part);
  StoredTensor tensor;
  tensor.dtype = text_of(member(entry, part, "dtype"), part + ": dtype");
  tensor.shape = wholes_of(member(entry, part, "shape"), part + ": shape", 0);
  const json& offsets = member(entry, part, "data_offsets");
  const std::vector<int64_t> place = wholes_of(offsets, part + ": data_offsets", 0);
  if (place.size() != 2 || place[0] > place[1] || place[1] > data_bytes) {
    throw BadContents(part + ": data_offsets",
                      fmt::format("[begin, end] inside the {} bytes of data", data_bytes), shown(offsets));
  }
  tensor.begin = place[0];
  tensor.end = place[1];
  const int64_t bytes = bytes_of(tensor, part);
  if (tensor.end - tensor.begin != bytes) {
    throw BadContents(part + ": data_offsets",
                      fmt::format("{} bytes apart for {} {}", bytes, tensor.dtype, shown(tensor.shape)),
                      shown(offsets));
  }
  return tensor;
}

std::map<std::string, std::string> read_metadata(const json& entry) {
  must_be_object(entry, kMetadata);
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : entry.items()) {
    metadata[name] = text_of(value, fmt::format("{}: {}", kMetadata, shown(name)));
  }
  return metadata;
}

// Every byte of the data belongs to one tensor.
void check_places(const SafeTensors& file) {
  std::vector<std::pair<const std::string*, const StoredTensor*>> in_order;
  for (const auto& [name, tensor] : file.tensors) in_order.emplace_back(&name, &tensor);
  std::stable_sort(in_order.begin(), in_order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t at = 0;
  for (const auto& [name, tensor] : in_order) {
    if (tensor->begin != at) {
      throw BadContents(fmt::format("tensor {}", shown(*name)),
                        fmt::format("at byte {} of the data, where the one before ends", at),
                        fmt::format("byte {}", tensor->begin));
    }
    at = tensor->end;
  }
  if (at != static_cast<int64_t>(file.data.size())) {
    throw BadContents("file", fmt::format("at its end after {} bytes of data", at),
                      fmt::format("{} bytes of data", file.data.size()));
  }
}

}  // namespace

const char* stored_type(DType type) {
  switch (type) {
    case DType::kBF16:
      return "BF16";
    case DType::kFP16:
      return "F16";
    case DType::kFP32:
      return "F32";
    case DType::kFP64:
      return "F64";
    case DType::kE4M3:
      return "F8_E4M3";
    case DType::kUE8M0:
      return "F8_E8M0";
    case DType::kInt8:
      return "I8";
    case DType::kInt32:
      return "I32";
    case DType::kInt64:
      return "I64";
    case DType::kBool:
      return "BOOL";
    default:
      return "U8";
  }
}

std::string safetensors_header(const std::map<std::string, std::string>& metadata,
                               const std::vector<std::pair<std::string, StoredTensor>>& tensors) {
  json header = {{kMetadata, metadata}};
  for (const auto& [name, tensor] : tensors) {
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = text.size();
  std::string bytes(kLengthBytes, '\0');
  std::memcpy(bytes.data(), &length, kLengthBytes);
  return bytes + text;
}

SafeTensors read_safetensors(std::span<const uint8_t> file) {
  if (file.size() < kLengthBytes) {
    throw BadContents("file", "of at least 8 bytes", fmt::format("{} bytes", file.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const uint64_t most = std::min<uint64_t>(file.size() - kLengthBytes, kMaxHeader);
  if (length > most) {
    throw BadContents("header", fmt::format("of at most {} bytes in a file of {}", most, file.size()),
                      fmt::format("a length of {}", length));
  }
  const std::span<const uint8_t> text = file.subspan(kLengthBytes, length);
  const json header = parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, "header");
  must_be_object(header, "header");
  SafeTensors found;
  found.data = file.subspan(kLengthBytes + length);
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) {
      found.metadata = read_metadata(entry);
    } else {
      const std::string part = fmt::format("tensor {}", shown(name));
      found.tensors[name] = read_tensor(entry, part, static_cast<int64_t>(found.data.size()));
    }
  }
  check_places(found);
  return found;
}

}  // namespace tilewise::casefile
