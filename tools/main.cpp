// The program `tilewise`: its sub-commands and their options.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "tools/demo.h"
#include "tools/info.h"

namespace {

// Of a command line that cannot be understood.
constexpr int kUsageError = 2;

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help
  std::fprintf(stderr,
               "tilewise: %s\nRun tilewise --help, or tilewise <command> --help, for what there is.\n",
               error.what());
  return kUsageError;
}

void add_plan_options(CLI::App& command, tilewise::PlanOptions& options) {
  command.add_option("--kernel", options.kernel, "Kernel to use in all calls, for example cpu_avx2");
  command.add_option("--threads", options.threads, "Threads to use (default: OpenMP's)")
      ->check(CLI::Range(1, 4096));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"tilewise: latent attention and its relatives, tile by tile"};
  app.require_subcommand(0, 1);

  tilewise::tools::DemoOptions demo;
  CLI::App* demo_command = app.add_subcommand(
      "demo",
      "Run model-like calls of append_kv and the attention operators, compare each with the oracle, time it");
  demo_command->add_option("--json", demo.json, "Write the results to this file as well");
  add_plan_options(*demo_command, demo.plan);

  tilewise::tools::InfoOptions info;
  CLI::App* info_command = app.add_subcommand("info", "Show this machine and the kernel tables");
  info_command->add_option(
      "--explain", info.explain,
      "Which kernels take the case of this name (or a small case of this operator), and why not");
  info_command->add_flag("--cases", info.list_cases, "List the names of all cases");
  info_command->add_flag("--support-table", info.support_table,
                         "Print the README's table of operators and kernels");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  if (app.get_subcommands().empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsageError;
  }
  try {
    return demo_command->parsed() ? tilewise::tools::run_demo(demo) : tilewise::tools::run_info(info);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tilewise: %s\n", error.what());
    return 1;
  }
}
