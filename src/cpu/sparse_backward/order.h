// Who may add to a row of dKV next: tokens add to every row in their own order, whatever thread has them.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

namespace tilewise::cpu {

/// A token adds its rows in ascending order and says how far it is: its frontier f means that all its rows
/// below f are added. Before it adds a row, every token before it must be past that row. Threads take tokens
/// in ascending order, so a thread that waits, waits for a token that another thread works on; the first
/// token that is not done waits for nobody.
class TokenOrder {
 public:
  static constexpr int32_t kDone = std::numeric_limits<int32_t>::max();

  /// frontiers [tokens], all 0 before the first token is taken.
  explicit TokenOrder(int32_t* frontiers) : frontiers_(frontiers) {}

  void set(int64_t token, int32_t frontier) const {
    std::atomic_ref(frontiers_[token]).store(frontier, std::memory_order_release);
  }

  /// Returns once all tokens before `token` have added all their rows up to `row`. `first_open` is the
  /// thread's own note of the first token that it has not seen done yet, 0 at the beginning.
  void wait(int64_t token, int32_t row, int64_t* first_open) const {
    for (int64_t before = *first_open; before < token; ++before) {
      const std::atomic_ref<int32_t> frontier(frontiers_[before]);
      int32_t seen = frontier.load(std::memory_order_acquire);
      while (seen <= row) {
        std::this_thread::yield();
        seen = frontier.load(std::memory_order_acquire);
      }
      if (seen == kDone && before == *first_open) ++*first_open;
    }
  }

 private:
  int32_t* frontiers_;
};

}  // namespace tilewise::cpu
