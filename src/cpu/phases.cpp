#include "cpu/phases.h"

#include <atomic>
#include <chrono>

namespace tilewise::cpu {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<bool> counting{false};
std::array<std::atomic<double>, kNumPhases> seconds{};
std::array<std::atomic<int64_t>, kNumPhases> times{};

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
  for (std::atomic<int64_t>& n : times) n = 0;
  counting = true;
}

PhaseCounts stop_counting_phases() {
  counting = false;
  PhaseCounts result;
  for (size_t i = 0; i < kNumPhases; ++i) {
    result.seconds[i] = seconds[i];
    result.times[i] = times[i];
  }
  return result;
}

InPhase::InPhase(Phase phase) : counting_(counting.load(std::memory_order_relaxed)) {
  if (!counting_) return;
  before_ = thread_clock.phase;
  thread_clock.switch_to(phase);
  times[static_cast<size_t>(phase)].fetch_add(1, std::memory_order_relaxed);
  ++thread_clock.depth;
}

InPhase::~InPhase() {
  if (!counting_) return;
  thread_clock.switch_to(before_);
  --thread_clock.depth;
}

}  // namespace tilewise::cpu
