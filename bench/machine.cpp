#include "bench/machine.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "tilewise/plan.h"

namespace tilewise::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int64_t kRows = 64;
constexpr int64_t kKeys = 128;
constexpr int64_t kColumns = 512;
constexpr size_t kCopyBytes = size_t{64} << 20;  // a thread and direction: more than its share of any cache
constexpr double kFlops = 2.0 * 2.0 * kRows * kKeys * kColumns;

/// Operands of one thread's tile products, 64-byte aligned, filled with ones.
class TileOperands {
 public:
  explicit TileOperands(const cpu::Isa& isa)
      : isa_(isa),
        packed_q_(isa.tile->packed_q_bytes(kRows, kColumns)),
        keys_(kKeys * kColumns * sizeof(BF16)),
        scores_(kKeys * kRows * sizeof(float)),
        weights_(kKeys * kRows * sizeof(float)),
        output_(kRows * kColumns * sizeof(float)),
        rescale_(kRows * sizeof(float)) {
    const std::vector<float> q(kRows * kColumns, 1.0f);
    isa.tile->pack_q(q.data(), kRows, kColumns, bytes(packed_q_));
    std::fill_n(static_cast<uint16_t*>(bytes(keys_)), kKeys * kColumns, f32_to_bf16_bits(1.0f));
    std::fill_n(floats(output_), kRows * kColumns, 0.0f);
    std::fill_n(floats(rescale_), kRows, 0.5f);  // keeps the sums finite
  }

  void multiply() {
    const cpu::TileProducts products(*isa_.tile);
    const cpu::KvTile<BF16> tile{static_cast<const BF16*>(bytes(keys_)), kColumns, kKeys};
    isa_.tile->scores(tile, kColumns, bytes(packed_q_), kRows, floats(scores_));
    isa_.tile->accumulate(bytes(weights_), tile, kRows, kColumns, floats(rescale_), floats(output_),
                          kColumns);
  }

 private:
  static void* bytes(const OwnedWorkspace& memory) { return static_cast<Workspace>(memory).data; }
  static float* floats(const OwnedWorkspace& memory) { return static_cast<float*>(bytes(memory)); }

  const cpu::Isa& isa_;
  OwnedWorkspace packed_q_, keys_, scores_, weights_, output_, rescale_;
};

/// Calls `work(thread)` on all threads for `repetitions` rounds and gives the seconds that the slowest took.
template <class MakeWork>
double time_threads(int threads, int repetitions, const MakeWork& make_work) {
  double slowest = 0;
#pragma omp parallel num_threads(threads) reduction(max : slowest)
  {
    auto work = make_work(omp_get_thread_num());
    work();  // touches the operands
#pragma omp barrier
    const auto start = Clock::now();
    for (int i = 0; i < repetitions; ++i) work();
    slowest = seconds_since(start);
  }
  return slowest;
}

}  // namespace

double tile_rate(const cpu::Isa& isa, int threads) {
  // About 10 ms whatever the instruction set reaches.
  const int repetitions = (isa.features & (kCpuAvx512 | kCpuAvx2)) != 0 ? 64 : 8;
  const double seconds = time_threads(threads, repetitions, [&](int) {
    return [operands = std::make_shared<TileOperands>(isa)] { operands->multiply(); };
  });
  return kFlops * repetitions * threads / seconds;
}

double copy_rate(int threads) {
  static std::vector<char> from;
  static std::vector<char> to;
  const size_t total = kCopyBytes * static_cast<size_t>(threads);
  if (from.size() < total) {
    from.assign(total, 1);
    to.assign(total, 0);
  }
  const double seconds = time_threads(threads, 1, [&](int thread) {
    const size_t at = kCopyBytes * static_cast<size_t>(thread);
    return [at] { std::memcpy(to.data() + at, from.data() + at, kCopyBytes); };
  });
  return static_cast<double>(total) / seconds;
}

const cpu::Isa& isa_of_kernel(const std::string& kernel) {
  for (const cpu::Isa& isa : cpu::tile_isas()) {
    if (isa.kernel == kernel) return isa;
  }
  throw std::runtime_error("no CPU instruction set has kernels named " + kernel);
}

}  // namespace tilewise::bench
