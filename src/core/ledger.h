// Workspace accounting: pieces are booked while planning and handed out while running, by the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewise {

class Ledger {
 public:
  static constexpr size_t kAlignment = 64;

  /// Reserves room for `count` elements of T and returns the piece's offset.
  template <class T>
  size_t book(int64_t count) {
    const size_t at = bytes_;
    const size_t size = static_cast<size_t>(count) * sizeof(T);
    bytes_ += (size + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

/// The piece of a running call's workspace that was booked at `offset`.
template <class T>
T* granted(void* workspace, size_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + offset);
}

/// Lays pieces out one after the other: books them in a ledger or, where there is a workspace, grants them
/// too. Whoever plans and whoever runs go through the same calls.
class Layouter {
 public:
  Layouter(Ledger& ledger, void* workspace) : ledger_(ledger), workspace_(workspace) {}

  template <class T>
  void piece(T*& p, int64_t count) {
    const size_t at = ledger_.book<T>(count);
    if (workspace_ != nullptr) p = granted<T>(workspace_, at);
  }
  void bytes(void*& p, int64_t count) {
    std::byte* memory = nullptr;
    piece(memory, count);
    p = memory;
  }

 private:
  Ledger& ledger_;
  void* workspace_;
};

}  // namespace tilewise
