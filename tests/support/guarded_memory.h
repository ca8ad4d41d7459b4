// Memory beside an unmapped page: the first byte read or written past it ends the process.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace tilewise::testing {

/// `bytes` bytes of which the last lies before an unmapped page or the first behind one. Where the size does
/// not allow the alignment otherwise, fewer bytes than an alignment lie between them and the page;
/// slack_holds() says whether those, and the rest of the mapped pages, are untouched.
class GuardedMemory {
 public:
  enum class Guard { kBehind, kBefore };
  static constexpr uint8_t kSlack = 0xA5;

  GuardedMemory(int64_t bytes, int64_t alignment, Guard guard) : bytes_(bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    inside_ = std::max<int64_t>((bytes + page - 1) / page, 1) * page;
    whole_ = inside_ + 2 * page;
    void* p = mmap(nullptr, static_cast<size_t>(whole_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<uint8_t*>(p);
    first_ = base_ + page;
    if (mprotect(first_, static_cast<size_t>(inside_), PROT_READ | PROT_WRITE) != 0) {
      munmap(base_, static_cast<size_t>(whole_));
      throw std::bad_alloc();
    }
    std::fill_n(first_, inside_, kSlack);
    data_ = guard == Guard::kBefore ? first_ : first_ + (inside_ - bytes) / alignment * alignment;
  }
  GuardedMemory(GuardedMemory&& other) noexcept { *this = std::move(other); }
  GuardedMemory& operator=(GuardedMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(first_, other.first_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(inside_, other.inside_);
    std::swap(whole_, other.whole_);
    return *this;
  }
  ~GuardedMemory() {
    if (base_ != nullptr) munmap(base_, static_cast<size_t>(whole_));
  }

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  bool slack_holds() const {
    const auto is_slack = [](uint8_t byte) { return byte == kSlack; };
    return std::all_of(first_, data_, is_slack) && std::all_of(data_ + bytes_, first_ + inside_, is_slack);
  }

 private:
  uint8_t* base_ = nullptr;   // of the whole mapping
  uint8_t* first_ = nullptr;  // behind the first unmapped page
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t inside_ = 0;  // mapped
  int64_t whole_ = 0;
};

/// Address space that costs memory only where it is touched, for strides that no array of a test could have.
/// It reads as zeros.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(p);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory() { munmap(data_, static_cast<size_t>(bytes_)); }

  uint8_t* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tilewise::testing
