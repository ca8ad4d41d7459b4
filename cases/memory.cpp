// Margins, canaries and walks over strided views.
#include "cases/memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace tilewise::cases {
namespace {

constexpr std::align_val_t kAlignment{64};

// Dimensions in order of falling strides, those that continue the next one merged with it.
struct Walk {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // bytes
  int64_t run = 0;               // bytes
};

Walk walk_of(const TensorView& view) {
  const int64_t element = size_of(view.dtype());
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int i = 0; i < view.rank(); ++i) {
    if (view.size(i) != 1) dims.emplace_back(view.stride(i) * element, view.size(i));
  }
  std::stable_sort(dims.begin(), dims.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  Walk walk;
  walk.run = element;
  while (!dims.empty() && dims.back().first == walk.run) {
    walk.run *= dims.back().second;
    dims.pop_back();
  }
  for (const auto& [stride, size] : dims) {
    walk.strides.push_back(stride);
    walk.sizes.push_back(size);
  }
  return walk;
}

}  // namespace

Buffer::Buffer(int64_t bytes, int64_t offset) : bytes_(bytes), offset_(offset) {
  memory_.reset(static_cast<uint8_t*>(::operator new(static_cast<size_t>(whole_bytes()), kAlignment)));
  std::memset(memory_.get(), 0, static_cast<size_t>(whole_bytes()));
  guard();
}

Buffer::Buffer(const Buffer& other) : Buffer(other.bytes_, other.offset_) {
  open();
  other.whole([&](uint8_t* from) { std::memcpy(memory_.get(), from, static_cast<size_t>(whole_bytes())); });
  guard();
}

Buffer& Buffer::operator=(const Buffer& other) {
  if (this != &other) *this = Buffer(other);
  return *this;
}

void Buffer::Free::operator()(uint8_t* p) const { ::operator delete(p, kAlignment); }

void Buffer::whole(const std::function<void(uint8_t*)>& use) const {
  open();
  use(memory_.get());
  guard();
}

void Buffer::guard() const {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(memory_.get(), static_cast<size_t>(before()));
  ASAN_POISON_MEMORY_REGION(data() + bytes_, static_cast<size_t>(kMargin));
#endif
}

void Buffer::open() const {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(memory_.get(), static_cast<size_t>(whole_bytes()));
#endif
}

void for_each_run(const TensorView& view, const std::function<void(uint8_t*, int64_t)>& visit) {
  if (!view.present() || view.numel() == 0) return;
  const Walk walk = walk_of(view);
  std::vector<int64_t> at(walk.sizes.size(), 0);
  for (;;) {
    int64_t offset = 0;
    for (size_t i = 0; i < at.size(); ++i) offset += at[i] * walk.strides[i];
    visit(view.data_as<uint8_t>() + offset, walk.run);
    size_t dim = at.size();
    while (dim > 0 && ++at[dim - 1] == walk.sizes[dim - 1]) at[--dim] = 0;
    if (dim == 0) return;
  }
}

std::vector<uint8_t> contents(const TensorView& view) {
  std::vector<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(view.present() ? view.numel() * size_of(view.dtype()) : 0));
  for_each_run(view, [&](uint8_t* run, int64_t n) { bytes.insert(bytes.end(), run, run + n); });
  return bytes;
}

std::array<uint8_t, 4> canary(DType type) {
  switch (type) {
    case DType::kFP32:
      return {0, 0, 0, 0x80};
    case DType::kBF16:
    case DType::kFP16:
      return {0, 0x80, 0, 0x80};
    case DType::kE4M3:
      return {0x80, 0x80, 0x80, 0x80};
    default:
      return {0xA5, 0xA5, 0xA5, 0xA5};
  }
}

void fill_with_canaries(Operand& operand) {
  const auto pattern = canary(operand.view.dtype());
  const int64_t first = operand.memory.before();
  operand.memory.whole([&](uint8_t* p) {
    for (int64_t i = 0; i < operand.memory.whole_bytes(); ++i)
      p[i] = pattern[static_cast<size_t>((i - first) & 3)];
  });
}

bool surroundings_hold(const Operand& operand) {
  // A copy of the memory with the elements put back to what they were must be what it was.
  std::vector<uint8_t> now(operand.initial.size());
  operand.memory.whole([&](uint8_t* p) { std::memcpy(now.data(), p, now.size()); });
  const uint8_t* start = operand.memory.data() - operand.memory.before();
  for_each_run(operand.view, [&](uint8_t* run, int64_t n) {
    std::memcpy(now.data() + (run - start), operand.initial.data() + (run - start), static_cast<size_t>(n));
  });
  return now == operand.initial;
}

}  // namespace tilewise::cases
