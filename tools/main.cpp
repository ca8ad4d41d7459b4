// The program `tilewise`: its sub-commands and their options.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "cases/case.h"
#include "tilewise/c_api.h"
#include "tools/bench.h"
#include "tools/demo.h"
#include "tools/info.h"
#include "tools/replay.h"
#include "tools/report.h"
#include "tools/verify.h"

namespace {

namespace tools = tilewise::tools;

// Of a command line that cannot be understood.
constexpr int kUsageError = 2;

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  std::fprintf(stderr,
               "tilewise: %s\nRun tilewise --help, or tilewise <command> --help, for what there is.\n",
               error.what());
  return kUsageError;
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Threads to use (default: OpenMP's)")->check(CLI::Range(1, 4096));
}

// An option that is given must say something: an empty variable in a script is a mistake.
std::string not_empty(const std::string& text) { return text.empty() ? "it must not be empty" : ""; }

void add_kernel(CLI::App& command, std::string& kernel, const char* meaning) {
  command.add_option("--kernel", kernel, meaning)->check(not_empty);
}

void add_device(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu (default), cuda or cuda:<number>")->check(not_empty);
}

void add_plan_options(CLI::App& command, tilewise::PlanOptions& options) {
  add_kernel(command, options.kernel, "Kernel to use in all calls, for example cpu_avx2");
  add_threads(command, options.threads);
}

void add_json(CLI::App& command, std::string& file) {
  command.add_option("--json", file, "Write the results to this file as well")->check(not_empty);
}

// Every sub-command adds itself to the program and returns what to do when it is the chosen one.
using Command = std::function<int()>;

CLI::App* add_demo(CLI::App& app, Command& command) {
  auto options = std::make_shared<tools::DemoOptions>();
  CLI::App* added = app.add_subcommand(
      "demo", "Run model-like calls of every operator, compare each with the oracle, time it");
  add_json(*added, options->json);
  add_plan_options(*added, options->plan);
  add_device(*added, options->device);
  command = [options] { return tools::run_demo(*options); };
  return added;
}

CLI::App* add_info(CLI::App& app, Command& command) {
  auto options = std::make_shared<tools::InfoOptions>();
  CLI::App* added = app.add_subcommand("info", "Show this machine and the kernel tables");
  added
      ->add_option("--explain", options->explain,
                   "Which kernels take the case of this name (or a small case of this operator), and why not")
      ->check(not_empty);
  added->add_flag("--cases", options->list_cases, "List the names of all cases");
  added->add_flag("--support-table", options->support_table,
                  "Print the README's table of operators and kernels");
  add_device(*added, options->device);
  command = [options] { return tools::run_info(*options); };
  return added;
}

CLI::App* add_verify(CLI::App& app, Command& command) {
  auto options = std::make_shared<tools::VerifyOptions>();
  CLI::App* added = app.add_subcommand(
      "verify",
      "Run a set of cases through every kernel of this machine, compare each result with the oracle");
  added->add_option("--set", options->set, "Which cases (default: smoke)")
      ->check(CLI::IsMember({"smoke", "ci", "full", "demo", "bench"}));
  std::vector<std::string> names;
  for (const auto op : tilewise::cases::all_ops()) names.emplace_back(tilewise::cases::op_name(op));
  added->add_option("--op", options->operators, "Only this operator; may be given several times")
      ->check(CLI::IsMember(names));
  added->add_option("--match", options->match, "Only cases whose names match this regular expression");
  add_kernel(*added, options->kernel, "Only this kernel");
  add_threads(*added, options->threads);
  add_json(*added, options->json);
  add_device(*added, options->device);
  command = [options] { return tools::run_verify(*options); };
  return added;
}

CLI::App* add_bench(CLI::App& app, Command& command) {
  auto options = std::make_shared<tools::BenchOptions>();
  CLI::App* added = app.add_subcommand("bench", "Time cases");
  added->add_option(
      "match", options->match,
      "A case's name, or a regular expression for names of the demo and bench sets (default: all)");
  add_plan_options(*added, options->plan);
  add_json(*added, options->json);
  command = [options] { return tools::run_bench(*options); };
  return added;
}

CLI::App* add_replay(CLI::App& app, Command& command) {
  auto options = std::make_shared<tools::ReplayOptions>();
  CLI::App* added = app.add_subcommand(
      "replay", "Run the call of a case file through every kernel, compare with the oracle, time it");
  added->add_option("file", options->file, "A file that save_case wrote")->required();
  add_kernel(*added, options->kernel, "Only this kernel (default: all)");
  add_threads(*added, options->threads);
  add_json(*added, options->json);
  command = [options] { return tools::run_replay(*options); };
  return added;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"tilewise: latent attention and its relatives, tile by tile"};
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", std::string("tilewise ") + tilewise_version());
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (const auto add : {add_demo, add_info, add_verify, add_bench, add_replay}) {
    Command command;
    CLI::App* added = add(app, command);
    commands.emplace_back(added, std::move(command));
  }

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
    for (const auto& [added, command] : commands) {
      if (added->parsed()) return command();
    }
  } catch (const tools::UsageError& error) {
    std::fprintf(stderr, "tilewise %s: %s\n", app.get_subcommands().front()->get_name().c_str(),
                 error.what());
    return kUsageError;
  } catch (const std::regex_error&) {
    std::fputs("tilewise: the cases' names must be matched by a regular expression (ECMAScript)\n", stderr);
    return kUsageError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tilewise: %s\n", error.what());
    return 1;
  }
  return kUsageError;
}
