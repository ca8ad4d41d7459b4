// Checks of what only C callers can get wrong.
#include "c_api/reader.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/check.h"
#include "tilewise/dlpack.h"

namespace tilewise::c_api {
namespace {

// A size beyond this was never written by the caller.
constexpr size_t kLargestArgs = 4096;

[[noreturn]] void refuse(const char* op, std::string_view argument, std::string_view expected,
                         std::string_view got) {
  Checker(op, {}).refuse(argument, expected, got);
}

}  // namespace

void Reader::must_be_given(const char* name, const void* pointer) const {
  if (pointer == nullptr) refuse(op_, name, "given", "NULL");
}

void Reader::check_size(const void* args, size_t known) const {
  size_t size = 0;
  std::memcpy(&size, args, sizeof(size));
  if (size < known || size > kLargestArgs) {
    refuse(op_, "size", fmt::format("sizeof(args), {} to {}", known, kLargestArgs), fmt::format("{}", size));
  }
  const auto* bytes = static_cast<const unsigned char*>(args);
  if (std::any_of(bytes + known, bytes + size, [](unsigned char b) { return b != 0; })) {
    refuse(op_, "args",
           fmt::format("0 from byte {} on, which this version of the library does not know", known),
           "something else");
  }
}

TensorView Reader::tensor(const char* name, const DLTensor* tensor) const {
  if (tensor == nullptr) return {};
  if (tensor->ndim > 0 && tensor->shape == nullptr) refuse(op_, name, "of a shape", "NULL");
  try {
    return from_dlpack(*tensor);
  } catch (const InvalidArgument& error) {
    // "from_dlpack: tensor must be ...": the rest holds for the argument.
    const std::string text = error.what();
    throw InvalidArgument(fmt::format("{}: {}{}", op_, name, text.substr(text.find(" must be "))));
  }
}

Record Reader::record(const char* name, const char* text) const {
  if (text == nullptr) return Record::kAuto;
  if (const auto found = record_from_name(text)) return *found;
  std::vector<std::string_view> names;
  for (const Record known : all_records()) names.emplace_back(record_name(known));
  refuse(op_, name, either_of(names) + ", or NULL", text);
}

}  // namespace tilewise::c_api
