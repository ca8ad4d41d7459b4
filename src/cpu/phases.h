// Where the time of the CPU kernels goes: seconds in each phase, summed over threads, and how often it began.
// Off until somebody counts, and then a branch for each phase of a tile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tilewise::cpu {

enum class Phase {
  kOther,    // finding work, merging pieces
  kQueries,  // reading and preparing q
  kPackQ,
  kGather,  // from index lists and page tables to addresses
  kDecode,  // copying or decoding rows into the tile
  kPackV,   // V (in a backward K), for several query tiles
  kScores,
  kSoftmax,
  kOutput,  // P V, packing V for one query tile
  kStore,   // the epilogue
};
inline constexpr size_t kNumPhases = 10;
inline constexpr std::array<const char*, kNumPhases> kPhaseNames = {
    "other", "queries", "pack q", "gather", "decode", "pack v", "scores", "softmax", "output", "store"};

struct PhaseCounts {
  std::array<double, kNumPhases> seconds{};
  std::array<int64_t, kNumPhases> times{};

  int64_t times_in(Phase phase) const { return times[static_cast<size_t>(phase)]; }
};

/// Starts counting at zero.
void start_counting_phases();
/// Stops counting; what all threads did since the start. To be called when no operator runs.
PhaseCounts stop_counting_phases();

/// The time of this object's life belongs to a phase, less that of others that begin meanwhile on the thread.
class InPhase {
 public:
  explicit InPhase(Phase phase);
  ~InPhase();
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  bool counting_;
  Phase before_ = Phase::kOther;
};

}  // namespace tilewise::cpu
