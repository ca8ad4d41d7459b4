#include "cpu/phases.h"

#include <atomic>
#include <chrono>

namespace tilewise::cpu {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> counting{false};
std::array<std::atomic<double>, kNumPhases> seconds{};

struct ThreadClock {
  Phase phase = Phase::kOther;
  int depth = 0;
  Clock::time_point since;

  void switch_to(Phase next) {
    const Clock::time_point now = Clock::now();
    if (depth > 0) {
      seconds[static_cast<size_t>(phase)].fetch_add(std::chrono::duration<double>(now - since).count(),
                                                    std::memory_order_relaxed);
    }
    since = now;
    phase = next;
  }
};

thread_local ThreadClock thread_clock;

}  // namespace

void start_counting_phases() {
  for (std::atomic<double>& s : seconds) s = 0;
  counting = true;
}

PhaseSeconds stop_counting_phases() {
  counting = false;
  PhaseSeconds result{};
  for (size_t i = 0; i < kNumPhases; ++i) result[i] = seconds[i];
  return result;
}

InPhase::InPhase(Phase phase) : counting_(counting.load(std::memory_order_relaxed)) {
  if (!counting_) return;
  before_ = thread_clock.phase;
  thread_clock.switch_to(phase);
  ++thread_clock.depth;
}

InPhase::~InPhase() {
  if (!counting_) return;
  thread_clock.switch_to(before_);
  --thread_clock.depth;
}

}  // namespace tilewise::cpu
