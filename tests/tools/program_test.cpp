// What all commands of the program share, `tilewise info`, and the demo's weight permutations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "cases/sets.h"
#include "cases/support_table.h"
#include "cases/training_examples.h"
#include "tests/support/kernels.h"
#include "tests/tools/program.h"
#include "tilewise/c_api.h"
#include "tools/permutes.h"

namespace tilewise::tools {
namespace {

using casefile::Folder;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kUsage = "Run tilewise --help, or tilewise <command> --help, for what there is.\n";

TEST(Program, WithoutACommandItPrintsHelp) {
  const Outcome outcome = run_program("");
  EXPECT_EQ(outcome.status, 2);
  for (const char* command : {"demo", "info", "verify", "bench", "replay"}) {
    EXPECT_THAT(outcome.err, HasSubstr(std::string("\n  ") + command + " ")) << command;
    const Outcome help = run_program(std::string(command) + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, HasSubstr("--help"));
  }
}

TEST(Program, Version) {
  const Outcome outcome = run_program("--version");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, std::string("tilewise ") + tilewise_version() + "\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(Program, ReportsThatCannotBeWrittenAreRefusedBeforeTheWork) {
  const Folder folder;
  casefile::write_file(folder.file("call"), "no case file");
  for (const std::string& command :
       {std::string("demo"), std::string("verify"), std::string("bench"), "replay " + folder.file("call")}) {
    const std::string name = command.substr(0, command.find(' '));
    Outcome outcome = run_program(command + " --json /none/report");
    EXPECT_EQ(outcome.status, 2) << command;
    EXPECT_EQ(outcome.out, "") << command;
    EXPECT_EQ(
        outcome.err,
        "tilewise " + name +
            ": --json must name a file that can be written, got /none/report (No such file or directory)\n");
    outcome = run_program(command + " --json ''");
    EXPECT_EQ(outcome.status, 2) << command;
    EXPECT_EQ(outcome.err, "tilewise: --json: it must not be empty\n" + kUsage);
  }
}

TEST(Program, DevicesThatAreNone) {
  for (const std::string command : {"demo", "info", "verify"}) {
    const std::string run = command + " --device ";
    for (const std::string device : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0"}) {
      const Outcome outcome = run_program(run + device);
      EXPECT_EQ(outcome.status, 2) << run << device;
      EXPECT_EQ(outcome.out, "");
      std::string expected = "tilewise " + command;
      expected += ": --device must be cpu, cuda or cuda:<number>, got '" + device;
      EXPECT_EQ(outcome.err, expected + "'\n");
    }
    const Outcome outcome = run_program(run + "''");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.err, "tilewise: --device: it must not be empty\n" + kUsage);
  }
}

#if !defined(TILEWISE_HAS_CUDA)
TEST(Program, ABuildWithoutCudaHasNoGpu) {
  for (const std::string command : {"demo", "info", "verify"}) {
    const std::string run = command + " --device ";
    for (const auto& [device, number] : {std::pair{"cuda", "0"}, {"cuda:0", "0"}, {"cuda:3", "3"}}) {
      const Outcome outcome = run_program(run + device);
      EXPECT_EQ(outcome.status, 1) << run << device;
      EXPECT_EQ(outcome.out, "");
      EXPECT_EQ(outcome.err,
                std::string("tilewise: cuda:") + number + ": this build of tilewise has no CUDA kernels\n");
    }
  }
}
#endif

TEST(Program, ARunThatEndsEarlyLeavesReportsAlone) {
  const Folder folder;
  EXPECT_EQ(run_program("verify --kernel none --json " + folder.file("new")).status, 2);
  EXPECT_FALSE(std::filesystem::exists(folder.file("new")));
  casefile::write_file(folder.file("old"), "an earlier report");
  EXPECT_EQ(run_program("verify --kernel none --json " + folder.file("old")).status, 2);
  EXPECT_EQ(casefile::read_file(folder.file("old")), "an earlier report");
  EXPECT_EQ(run_program("verify --op dequantize_kv --match ' n0 ' --json " + folder.file("old")).status, 0);
  EXPECT_EQ(read_json(folder.file("old"))["ok"], true);
}

TEST(Info, ShowsTheMachineAndEveryOperator) {
  const Outcome outcome = run_program("info");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith(std::string("tilewise ") + tilewise_version() +
                                      "\ndevice: " + to_string(Device::cpu()) + "\n"));
  std::set<std::string> plain;
  for (const cases::PlainOperator& op : cases::kPlainOperators) plain.insert(op.name);
  std::set<std::string> training;
  for (const auto& example : cases::training_examples()) training.insert(operator_name(example.args));
  std::set<std::string> operators = plain;
  operators.insert(training.begin(), training.end());
  for (const cases::Op op : cases::all_ops()) operators.insert(cases::op_name(op));
  EXPECT_EQ(operators.size(), std::variant_size_v<CaseArgs>);
  for (const std::string& op : operators) {
    const std::string first = plain.contains(op) ? "cpu "
                              : cuda::kBuilt && !training.contains(op)
                                  ? "cuda_portable refused: runs on CUDA devices, not on cpu\n"
                                  : "cpu_";
    std::string begin = "\n";
    begin.append(op).append("\n  ").append(first);
    EXPECT_THAT(outcome.out, HasSubstr(begin));
  }
  for (const std::string& kernel : testing::kernels_of(Device::cpu(), true)) {
    EXPECT_THAT(outcome.out, HasSubstr("  " + kernel));
  }
}

TEST(Info, ExplainsCasesAndOperators) {
  const std::string name = cases::name(cases::smoke_cases(cases::Op::kAppendKv).back());
  Outcome outcome = run_program("info --explain '" + name + "'");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith(name + "\n  " + testing::table_rows(false)[0] + " "));
  EXPECT_THAT(outcome.out, HasSubstr("\nplan: append_kv: kernel "));
  outcome = run_program("info --explain permute_wv_proj");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "permute_wv_proj\n  cpu              supported\nno plan\n");
  outcome = run_program("info --explain dense_prefill_bwd");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith("dense_prefill_bwd\n  cpu_"));
  EXPECT_THAT(outcome.out, HasSubstr("\nplan: dense_prefill_bwd: kernel "));
}

TEST(Info, TheTableIsPrintedBesideTheErrorOfAForcedKernel) {
  setenv("TILEWISE_KERNEL", "cpu_avx22", 1);
  const Outcome outcome = run_program("info --explain sparse_decode");
  unsetenv("TILEWISE_KERNEL");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("\n  cpu_baseline     supported\n"));
  EXPECT_EQ(outcome.err,
            "tilewise: sparse_decode: kernel must be " + testing::table_text(true) + ", got cpu_avx22\n");
}

TEST(Info, NamesThatAreNone) {
  Outcome outcome = run_program("info --explain softmax");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err,
            "tilewise info: --explain must be an operator or a case of --cases, got 'softmax'\n");
  outcome = run_program("info --explain ''");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "tilewise: --explain: it must not be empty\n" + kUsage);
}

TEST(Demo, HasCasesOfEveryOperator) {
  std::set<cases::Op> seen = {cases::Op::kFusedPrefill, cases::Op::kAppendKv};  // of the layer
  for (const cases::Case& c : cases::demo_cases()) seen.insert(c.op);
  EXPECT_EQ(seen.size(), cases::all_ops().size());
}

TEST(Demo, PermutesWeights) {
  std::vector<std::string> steps;
  const std::vector<Row> rows =
      run_permutes(Device::cpu(), [&](const std::string& step) { steps.push_back(step); });
  EXPECT_THAT(steps, ::testing::ElementsAre("permute_q_b_proj", "permute_wv_proj"));
  ASSERT_EQ(rows.size(), size_t{kPermuteSteps});
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].op, steps[i]);
    EXPECT_TRUE(rows[i].comparison.ok) << rows[i].comparison.where;
    EXPECT_GT(rows[i].milliseconds, 0);
  }
}

}  // namespace
}  // namespace tilewise::tools
