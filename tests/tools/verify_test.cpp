// `tilewise verify` and `tilewise bench`.
#include "tools/verify.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <set>

#include "cases/sets.h"
#include "tests/support/kernels.h"
#include "tests/tools/program.h"

namespace tilewise::tools {
namespace {

using casefile::Folder;
using ::testing::HasSubstr;

TEST(Verify, RunsEveryKernelOnTheChosenCases) {
  const Folder folder;
  const Outcome outcome =
      run_program("verify --op quantize_kv --op combine_partials --threads 2 --json " + folder.file("json"));
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const size_t cases_run = cases::smoke_cases(cases::Op::kQuantizeKv).size() +
                           cases::smoke_cases(cases::Op::kCombinePartials).size();
  // No terminal: a line a case.
  EXPECT_THAT(outcome.err, HasSubstr("[1/" + std::to_string(cases_run) + "] combine_partials "));
  EXPECT_THAT(outcome.err, HasSubstr("[" + std::to_string(cases_run) + "/" + std::to_string(cases_run) +
                                     "] quantize_kv "));
  EXPECT_THAT(outcome.out, HasSubstr(", all within their bounds; "));

  const nlohmann::json report = read_json(folder.file("json"));
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["set"], "smoke");
  EXPECT_EQ(report["cases"], cases_run);
  EXPECT_EQ(report["broken"], nlohmann::json::array());
  std::set<std::pair<std::string, std::string>> ran;
  for (const auto& kernel : report["kernels"]) {
    if (kernel["results"] > 0) ran.emplace(kernel["operator"], kernel["kernel"]);
    EXPECT_EQ(kernel["broken"], 0);
  }
  for (const std::string& kernel : testing::kernels_of(Device::cpu(), false)) {
    EXPECT_TRUE(ran.contains({"quantize_kv", kernel})) << kernel;
    EXPECT_TRUE(ran.contains({"combine_partials", kernel})) << kernel;
  }
}

TEST(Verify, MatchAndKernel) {
  const Folder folder;
  const Outcome outcome =
      run_program("verify --set ci --op sparse_decode --match 'v4_fp8.*q1 ' --match-nothing");
  EXPECT_EQ(outcome.status, 2);
  const Outcome chosen =
      run_program("verify --set demo --op dense_decode --match 'float16' --kernel cpu_baseline --json " +
                  folder.file("json"));
  EXPECT_EQ(chosen.status, 0) << chosen.out << chosen.err;
  const nlohmann::json report = read_json(folder.file("json"));
  ASSERT_EQ(report["kernels"].size(), 1u);
  EXPECT_EQ(report["kernels"][0]["kernel"], "cpu_baseline");
  EXPECT_EQ(report["kernels"][0]["operator"], "dense_decode");
  EXPECT_GT(report["kernels"][0]["error_to_bound"].get<double>(), 0);
}

TEST(Verify, ExitStatus) {
  const std::string usage = "Run tilewise --help, or tilewise <command> --help, for what there is.\n";
  Outcome outcome = run_program("verify --match 'no case has this name'");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise verify: no case of the set smoke matches\n");
  outcome = run_program("verify --match '('");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise: the cases' names must be matched by a regular expression (ECMAScript)\n");
  outcome = run_program("verify --set all");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise: --set: all not in {smoke,ci,full,demo,bench}\n" + usage);
  outcome = run_program("verify --op softmax");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("tilewise: --op: softmax not in {dense_decode,sparse_decode,"));

  outcome = run_program("verify --op quantize_kv --kernel none");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise verify: --kernel must be " + testing::table_text(false) + ", got none\n");
  EXPECT_EQ(outcome.out, "");
}

TEST(Verify, ACaseThatNothingRunsIsBroken) {
  Device old;
  old.cpu_features = kCpuBaseline;
  const cases::Case c = cases::smoke_cases(cases::Op::kQuantizeKv).back();
  Verification found;
  verify_case(c, old, {}, &found);
  EXPECT_TRUE(found.ok()) << found.text();
  EXPECT_EQ(found.results(), 1);

  VerifyOptions options;
  options.kernel = "cpu_avx2";
  verify_case(c, old, options, &found);
  EXPECT_FALSE(found.ok());
  EXPECT_EQ(found.results(), 1);
  EXPECT_THAT(found.text(), HasSubstr("BROKEN: " + cases::name(c) + " by cpu_avx2: no kernel ran\n"));
}

reference::Comparison comparison(double error, double bound) {
  reference::Comparison c;
  c.note(error, bound, [] { return "row 1, column 2: got 3, expected 4"; });
  return c;
}

TEST(Verification, CountsAndNamesWhatIsBroken) {
  Verification found;
  EXPECT_TRUE(found.ok());
  found.add_result("op", "good", "case a", comparison(1, 4));
  found.add_result("op", "bad", "case a", comparison(1, 4));
  found.add_refusal("op", "bad");
  EXPECT_TRUE(found.ok());
  found.add_result("op", "bad", "case b", comparison(8, 4));
  EXPECT_FALSE(found.ok());
  found.add_failure("op", "ugly", "case c", "it threw");
  EXPECT_EQ(found.results(), 3);
  EXPECT_EQ(found.text(),
            "operator  kernel  results  refused  broken     error     bound   error/bound\n"
            "----------------------------------------------------------------------------\n"
            "op        good          1        0       0  1.00e+00  4.00e+00         0.250\n"
            "op        bad           2        1       1  8.00e+00  4.00e+00  2.000 BROKEN\n"
            "op        ugly          0        0       1         -         -             -\n"
            "BROKEN: case b by bad: row 1, column 2: got 3, expected 4\n"
            "BROKEN: case c by ugly: it threw\n");
  const nlohmann::json report = found.to_json();
  EXPECT_EQ(report["ok"], false);
  EXPECT_EQ(report["kernels"][1]["broken"], 1);
  EXPECT_EQ(report["kernels"][1]["ok"], false);
  EXPECT_EQ(report["broken"][1],
            (nlohmann::json{{"case", "case c"}, {"kernel", "ugly"}, {"what", "it threw"}}));
}

TEST(Verification, ShowsTheFirstTwenty) {
  Verification found;
  for (int i = 0; i < 23; ++i) found.add_failure("op", "bad", "case " + std::to_string(i), "it threw");
  EXPECT_THAT(found.text(), HasSubstr("BROKEN: case 19 by bad: it threw\nand 3 more\n"));
  EXPECT_EQ(found.to_json()["broken"].size(), 23u);
}

// What the program writes to a terminal as stderr.
std::string terminal_output(const std::string& arguments) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0)
    throw std::runtime_error("no terminal");
  const std::string name = ptsname(terminal);
  const std::string command =
      std::string("'") + TILEWISE_PROGRAM_PATH + "' " + arguments + " >/dev/null 2>" + name + " <" + name;
  const int keep_open = open(name.c_str(), O_RDWR | O_NOCTTY);
  const int status = std::system(command.c_str());  // NOLINT(bugprone-command-processor)
  // What the program wrote reaches this end piece by piece, the last one some time after it ended.
  std::string text;
  pollfd readable{terminal, POLLIN, 0};
  while (poll(&readable, 1, 250) == 1) {
    std::array<char, 4096> piece{};
    const ssize_t count = read(terminal, piece.data(), piece.size());
    if (count <= 0) break;
    text.append(piece.data(), static_cast<size_t>(count));
  }
  close(keep_open);
  close(terminal);
  return status == 0 ? text : "";
}

TEST(Verify, ABarOnATerminal) {
  const std::string text = terminal_output("verify --op quantize_kv --match 'n1 '");
  EXPECT_THAT(text, HasSubstr("\r\x1b[K[####"));
  EXPECT_THAT(text, HasSubstr("] 1/"));
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K") << "the bar goes away";
}

TEST(Bench, TimesCasesByName) {
  const Folder folder;
  const std::string name = cases::name(cases::smoke_cases(cases::Op::kCombinePartials).back());
  Outcome outcome = run_program("bench '" + name + "' --kernel cpu_baseline --json " + folder.file("json"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(name));
  const nlohmann::json report = read_json(folder.file("json"));
  ASSERT_EQ(report["rows"].size(), 1u);
  EXPECT_EQ(report["rows"][0]["case"], name);
  EXPECT_EQ(report["rows"][0]["kernel"], "cpu_baseline");
  EXPECT_GE(report["rows"][0]["runs"].get<int>(), 5);
  EXPECT_GT(report["rows"][0]["median_milliseconds"].get<double>(), 0);
  EXPECT_LE(report["rows"][0]["fastest_milliseconds"], report["rows"][0]["median_milliseconds"]);

  outcome = run_program("bench '^combine_partials.*splits8' --json " + folder.file("json"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(read_json(folder.file("json"))["rows"].size(), 2u) << "one of each merging operator";
}

TEST(Bench, ExitStatus) {
  Outcome outcome = run_program("bench 'no case has this name'");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise bench: no case matches 'no case has this name'\n");
  outcome = run_program("bench '['");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise: the cases' names must be matched by a regular expression (ECMAScript)\n");
  outcome = run_program("bench '^combine_partials .*splits8' --kernel none");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err, "tilewise bench: --kernel must be " + testing::table_text(false) + ", got none\n");
}

}  // namespace
}  // namespace tilewise::tools
