// Error texts under FlashMLA's names.
#include "flashmla_names.h"

#include <fmt/format.h>

#include <cctype>

namespace tilewise::bindings {
namespace {

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string_view name_for(std::string_view word, std::string_view before, std::span<const Rename> names) {
  // "left out" is no argument.
  if (before.ends_with("left ")) return word;
  for (const Rename& name : names) {
    if (name.from == word) return name.to;
  }
  return word;
}

}  // namespace

std::string renamed_text(std::string_view text, std::string_view op, std::span<const Rename> names) {
  const size_t colon = text.find(':');
  std::string result(op);
  for (size_t i = colon == std::string_view::npos ? text.size() : colon; i < text.size();) {
    size_t end = i;
    while (end < text.size() && in_word(text[end])) ++end;
    if (end == i) {
      result += text[i++];
    } else {
      result += name_for(text.substr(i, end - i), text.substr(0, i), names);
      i = end;
    }
  }
  return result;
}

void refuse_strides(const char* op, const char* name, const TensorView& view) {
  throw InvalidArgument(fmt::format("{}: {} must be contiguous, got shape [{}] with strides [{}]", op, name,
                                    fmt::join(view.shape(), ", "), fmt::join(view.strides(), ", ")));
}

}  // namespace tilewise::bindings
