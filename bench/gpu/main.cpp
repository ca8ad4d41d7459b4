// Times the GPU's kernels at the shapes of the performance targets: prefills as eager calls, everything else
// inside the replay of a graph, and what an eager call costs on the host. Calls take turns with several sets
// of inputs where one set would stay in the L2 cache.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "bench/gpu/inputs.h"
#include "bench/gpu/shapes.h"
#include "bench/gpu/timing.h"
#include "cases/judge.h"
#include "cuda/common/launch.h"

namespace tilewise::bench {
namespace {

constexpr int kMostSets = 10;
constexpr double kBytesOfSets = 200e6;  // of all sets together at least

struct Options {
  std::string match;
  std::string json;
  std::string commit;
  std::string kernel;
  bool list = false;
};

struct Row {
  std::string op;
  std::string shape;
  std::string kernel;
  std::string method;
  int sets = 1;
  GpuTimes times;
  double tflops = 0;
  double tbps = 0;
  std::string error;
};

Row measure(const cases::Case& c, const Device& device, const std::string& kernel) {
  Row row;
  row.op = cases::op_name(c.op);
  row.shape = cases::name(c);
  row.method = timed_in_graph(c.op) ? "graph" : "eager";
  std::vector<std::unique_ptr<GpuInputs>> sets;
  sets.push_back(std::make_unique<GpuInputs>(c, device.id, 0));
  const double bytes = sets[0]->bytes();
  row.sets = std::clamp(static_cast<int>(kBytesOfSets / bytes) + 1, 1, kMostSets);
  for (int i = 1; i < row.sets; ++i) {
    sets.push_back(std::make_unique<GpuInputs>(c, device.id, static_cast<uint64_t>(i)));
  }
  std::vector<cases::Args> args;
  for (const auto& set : sets) args.push_back(set->args());

  PlanOptions options;
  options.kernel = kernel;
  const Plan plan = cases::plan_case(args[0], device, options);
  row.kernel = plan.kernel();
  const DeviceBytes workspace(static_cast<int64_t>(plan.workspace_bytes()));
  const Workspace scratch{workspace.data(), plan.workspace_bytes()};
  const GpuCall call = [&](int i, void* stream) {
    std::visit([&](const auto& a) { run(plan, a, scratch, {stream}); },
               args[static_cast<size_t>(i) % args.size()]);
  };
  row.times = timed_in_graph(c.op) ? time_in_graph(call) : time_eager(call);
  row.tflops = sets[0]->flops() / row.times.median_us * 1e-6;
  row.tbps = bytes / row.times.median_us * 1e-6;
  return row;
}

nlohmann::json to_json(const Row& row) {
  nlohmann::json entry = {
      {"op", row.op}, {"shape", row.shape}, {"kernel", row.kernel}, {"method", row.method}};
  if (!row.error.empty()) {
    entry["error"] = row.error;
    return entry;
  }
  entry.update({{"sets", row.sets},
                {"samples", row.times.samples},
                {"median_us", row.times.median_us},
                {"min_us", row.times.min_us},
                {"max_us", row.times.max_us},
                {"host_us", row.times.host_us},
                {"tflops", row.tflops},
                {"tbps", row.tbps}});
  return entry;
}

void print(const Row& row) {
  if (!row.error.empty()) {
    fmt::print("{}\n  FAILED: {}\n", row.shape, row.error);
  } else {
    fmt::print("{}\n  {} {}: {:.1f} us ({:.1f} to {:.1f}), {:.1f} TFLOP/s, {:.3f} TB/s, host {:.1f} us\n",
               row.shape, row.kernel, row.method, row.times.median_us, row.times.min_us, row.times.max_us,
               row.tflops, row.tbps, row.times.host_us);
  }
  std::fflush(stdout);
}

std::string gpu_name(int32_t index) {
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, index), "the GPU's name");
  return properties.name;
}

int run_rows(const Options& options) {
  const std::regex match(options.match);
  std::vector<cases::Case> chosen;
  for (const cases::Case& c : gpu_shapes()) {
    if (std::regex_search(cases::name(c), match)) chosen.push_back(c);
  }
  if (options.list) {
    for (const cases::Case& c : chosen) fmt::print("{}\n", cases::name(c));
    return 0;
  }
  const Device device = Device::cuda();
  fmt::print("{} ({})\n", gpu_name(device.id.index), to_string(device));
  nlohmann::json rows = nlohmann::json::array();
  bool ok = !chosen.empty();
  for (const cases::Case& c : chosen) {
    Row row;
    try {
      row = measure(c, device, options.kernel);
    } catch (const std::exception& error) {
      row.op = cases::op_name(c.op);
      row.shape = cases::name(c);
      row.error = error.what();
      ok = false;
    }
    print(row);
    rows.push_back(to_json(row));
    if (options.json.empty()) continue;
    // Written anew after every row: what has been measured survives whatever ends the process.
    const nlohmann::json all = {{"commit", options.commit},
                                {"gpu", gpu_name(device.id.index)},
                                {"device", to_string(device)},
                                {"rows", rows}};
    std::ofstream(options.json) << all.dump(1) << "\n";
  }
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace tilewise::bench

int main(int argc, char** argv) {
  CLI::App app{"Times the GPU's kernels"};
  tilewise::bench::Options options;
  app.add_option("match", options.match, "Only shapes whose names match this regular expression");
  app.add_option("--json", options.json, "Write the results to this file as well");
  app.add_option("--commit", options.commit, "What was built, for the file");
  app.add_option("--kernel", options.kernel, "Kernel to use for all shapes");
  app.add_flag("--list", options.list, "List the shapes' names alone");
  CLI11_PARSE(app, argc, argv);
  try {
    return tilewise::bench::run_rows(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tilewise_gpu_bench: %s\n", error.what());
    return 1;
  }
}
