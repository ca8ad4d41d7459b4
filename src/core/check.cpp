// Texts and rules of the argument checker.
#include "core/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/footprint.h"

namespace tilewise {
namespace {

constexpr int64_t kMatrixAlignment = 16;

std::string expectation(std::initializer_list<DType> types, std::initializer_list<Dim> shape,
                        std::string_view condition) {
  std::vector<std::string_view> names;
  for (DType type : types) names.emplace_back(to_string(type));
  std::vector<std::string> dims;
  for (const Dim& dim : shape) dims.push_back(dim.text());
  return fmt::format("{} [{}]{}{}", either_of(names), fmt::join(dims, ", "), condition.empty() ? "" : " ",
                     condition);
}

bool accepts(std::initializer_list<Dim> expected, std::span<const int64_t> shape) {
  return std::equal(expected.begin(), expected.end(), shape.begin(), shape.end(),
                    [](const Dim& dim, int64_t size) { return dim.accepts(size); });
}

bool is_small_matrix(const TensorView& view) { return view.rank() >= 2 && size_of(view.dtype()) <= 2; }

std::string with_condition(std::string_view expected, std::string_view condition) {
  return fmt::format("{}{}{}", expected, condition.empty() ? "" : " ", condition);
}

std::string strides_of(const TensorView& view) {
  return fmt::format("shape [{}] with strides [{}]", fmt::join(view.shape(), ", "),
                     fmt::join(view.strides(), ", "));
}

}  // namespace

Dim Dim::either(int64_t size, int64_t other) {
  Dim dim(size);
  dim.other_ = other;
  return dim;
}

std::string Dim::text() const {
  if (name_ != nullptr) return name_;
  return other_ == size_ ? fmt::format("{}", size_) : fmt::format("{} or {}", size_, other_);
}

std::string either_of(std::span<const std::string_view> names) {
  if (names.empty()) return "";
  if (names.size() == 1) return std::string(names[0]);
  const auto head = names.first(names.size() - 1);
  return fmt::format("{} or {}", fmt::join(head, ", "), names.back());
}

void Checker::refuse(std::string_view argument, std::string_view expected, std::string_view got) const {
  throw InvalidArgument(fmt::format("{}: {} must be {}, got {}", op_, argument, expected, got));
}

void Checker::given(const char* name, const TensorView& view, std::string_view condition) const {
  if (!view) refuse(name, with_condition("given", condition), "nothing");
}

void Checker::left_out(const char* name, const TensorView& view, std::string_view condition) const {
  if (view) refuse(name, with_condition("left out", condition), to_string(view));
}

void Checker::aligned(const char* name, const TensorView& view, int64_t bytes) const {
  if (view.numel() == 0) return;
  const auto past = reinterpret_cast<uintptr_t>(view.data()) % static_cast<uintptr_t>(bytes);
  if (past == 0) return;
  refuse(name, fmt::format("memory that starts at a multiple of {} bytes", bytes),
         fmt::format("an address {} byte{} past one", past, past == 1 ? "" : "s"));
}

void Checker::count(const char* name, const char* dim, int64_t size, int64_t least) const {
  if (size >= least && size <= kMaxCount) return;
  refuse(name, fmt::format("of {} {} to {}", dim, least, kMaxCount), fmt::format("{} {}", dim, size));
}

void Checker::strides(const char* name, const TensorView& view, Layout layout) const {
  if (layout == Layout::kContiguous && !view.is_contiguous()) {
    refuse(name, "contiguous", strides_of(view));
  }
  if (layout != Layout::kRows || view.rank() == 0) return;
  const int last = view.rank() - 1;
  if (view.size(last) > 1 && view.stride(last) != 1) {
    refuse(name, "contiguous in its last dimension", fmt::format("stride({}) {}", last, view.stride(last)));
  }
  if (!is_small_matrix(view)) return;
  for (int i = 0; i < last; ++i) {
    if (view.size(i) == 1) continue;
    const int64_t bytes = view.stride(i) * size_of(view.dtype());
    if (bytes % kMatrixAlignment != 0) {
      refuse(name, "of strides of whole 16 bytes", fmt::format("stride({}) of {} bytes", i, bytes));
    }
  }
}

void Checker::tensor(const char* name, const TensorView& view, std::initializer_list<DType> types,
                     std::initializer_list<Dim> shape, Layout layout, std::string_view condition,
                     bool written) {
  given(name, view);
  const bool right_type = std::find(types.begin(), types.end(), view.dtype()) != types.end();
  if (!right_type || !accepts(shape, view.shape())) {
    refuse(name, expectation(types, shape, condition), to_string(view));
  }
  if (view.device() != device_) {
    refuse(name, fmt::format("on {}", to_string(device_)), to_string(view.device()));
  }
  if (view.numel() == 0) return;
  if (view.data() == nullptr) refuse(name, "memory", "a null pointer");
  aligned(name, view, is_small_matrix(view) ? kMatrixAlignment : size_of(view.dtype()));
  strides(name, view, layout);
  seen_.at(num_seen_++) = {name, &view, written};
}

void Checker::input(const char* name, const TensorView& view, std::initializer_list<DType> types,
                    std::initializer_list<Dim> shape, Layout layout, std::string_view condition) {
  tensor(name, view, types, shape, layout, condition, false);
}

void Checker::output(const char* name, const TensorView& view, std::initializer_list<DType> types,
                     std::initializer_list<Dim> shape, Layout layout, std::string_view condition) {
  tensor(name, view, types, shape, layout, condition, true);
}

void Checker::no_overlaps() const {
  std::array<Footprint, kMaxTensors> places;
  for (size_t i = 0; i < num_seen_; ++i) {
    places[i] = footprint(*seen_[i].view);
    if (seen_[i].written && places[i].shares_itself) {
      refuse(seen_[i].name, "of elements that lie apart in memory", strides_of(*seen_[i].view));
    }
    for (size_t j = 0; j < i; ++j) {
      if (!(seen_[i].written || seen_[j].written) || !overlap(places[i], places[j])) continue;
      const bool later = seen_[i].written;
      refuse(seen_[later ? i : j].name, fmt::format("in memory apart from {}", seen_[later ? j : i].name),
             "an overlap");
    }
  }
}

}  // namespace tilewise
