// Times every operator at the shapes of cases::bench_cases() and sets each time against the machine's own
// rates.
//
// A repetition measures the tile rate, the copy rate and one run of the operator right after one another,
// because the rates of a shared machine move within seconds. Counters of a repetition:
//   tile_GFLOP/s, copy_GB/s   the two rates
//   GFLOP/s, GB/s             what the operator reached
//   quotient                  time / (FLOP / tile rate + bytes / copy rate)
// Read the medians. TILEWISE_KERNEL forces a kernel, OMP_NUM_THREADS sets the threads.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <regex>
#include <string_view>

#include "bench/machine.h"
#include "cases/data.h"
#include "cases/judge.h"
#include "cases/sets.h"
#include "cases/work.h"
#include "cpu/phases.h"

namespace tilewise::bench {
namespace {

constexpr int kRepetitions = 9;

/// A case that is ready to run; made on first use, so that a filter costs nothing.
class ReadyCase {
 public:
  explicit ReadyCase(const cases::Case& c)
      : data_(cases::make(c)),
        args_(data_.args()),
        device_(Device::cpu()),
        plan_(cases::plan_case(args_, device_)),
        workspace_(plan_.workspace_bytes()),
        work_(cases::work(data_)) {}

  void run() { cases::run_case(plan_, args_, workspace_); }
  const Plan& plan() const { return plan_; }
  const cases::Work& work() const { return work_; }
  int threads() const { return device_.threads; }

 private:
  cases::CaseData data_;
  cases::Args args_;
  Device device_;
  Plan plan_;
  OwnedWorkspace workspace_;
  cases::Work work_;
};

void run_operator(benchmark::State& state, const cases::Case& c, std::unique_ptr<ReadyCase>& ready) {
  if (ready == nullptr) {
    ready = std::make_unique<ReadyCase>(c);
    ready->run();
  }
  const double tiles = tile_rate(isa_of_kernel(ready->plan().kernel()), ready->threads());
  const double copies = copy_rate(ready->threads());
  double seconds = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    ready->run();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
  }
  const cases::Work& work = ready->work();
  state.counters["tile_GFLOP/s"] = tiles * 1e-9;
  state.counters["copy_GB/s"] = copies * 1e-9;
  if (work.flops > 0) state.counters["GFLOP/s"] = work.flops / seconds * 1e-9;
  state.counters["GB/s"] = work.bytes / seconds * 1e-9;
  state.counters["quotient"] = seconds / (work.flops / tiles + work.bytes / copies);
  state.SetLabel(ready->plan().kernel());
}

/// One line a case: milliseconds of all threads in each phase, and what the operator reached.
void print_phases(const std::regex& chosen) {
  constexpr int kRuns = 9;
  for (const cases::Case& c : cases::bench_cases()) {
    if (!std::regex_search(cases::name(c), chosen)) continue;
    ReadyCase ready(c);
    ready.run();
    cpu::start_counting_phases();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) ready.run();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kRuns;
    const cpu::PhaseCounts phases = cpu::stop_counting_phases();
    fmt::print("{} ({}): {:.3f} ms, {:.0f} GFLOP/s\n ", cases::name(c), ready.plan().kernel(), seconds * 1e3,
               ready.work().flops / seconds * 1e-9);
    for (size_t i = 0; i < cpu::kNumPhases; ++i) {
      fmt::print(" {} {:.3f}", cpu::kPhaseNames[i], phases.seconds[i] / kRuns * 1e3);
    }
    fmt::print("\n");
  }
}

void register_cases() {
  for (const cases::Case& c : cases::bench_cases()) {
    auto ready = std::make_shared<std::unique_ptr<ReadyCase>>();
    benchmark::RegisterBenchmark(cases::name(c).c_str(),
                                 [c, ready](benchmark::State& state) { run_operator(state, c, *ready); })
        ->UseManualTime()
        ->Iterations(1)
        ->Repetitions(kRepetitions)
        ->ReportAggregatesOnly()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace tilewise::bench

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--phases") {
    tilewise::bench::print_phases(std::regex(argc > 2 ? argv[2] : ""));
    return 0;
  }
  benchmark::AddCustomContext("device", tilewise::to_string(tilewise::Device::cpu()));
  tilewise::bench::register_cases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
