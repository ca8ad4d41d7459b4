// `tilewise replay`: case files of every operator, and what can be wrong with one.
#include "tools/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <set>

#include "casefile/json.h"
#include "casefile/load.h"
#include "cases/data.h"
#include "cases/random.h"
#include "cases/sets.h"
#include "cases/training.h"
#include "core/numeric.h"
#include "tests/casefile/damage.h"
#include "tests/errors/refusal.h"
#include "tests/errors/training_calls.h"
#include "tests/support/kernels.h"
#include "tests/tools/program.h"
#include "tools/call.h"

namespace tilewise::tools {
namespace {

using casefile::Folder;
using ::testing::HasSubstr;

// A call and the memory that it views.
struct OwnedCall {
  CaseArgs args;
  std::shared_ptr<void> memory;
};

OwnedCall call_of(const cases::Case& c) {
  auto data = std::make_shared<cases::CaseData>(cases::make(c));
  return {std::visit([](const auto& a) { return CaseArgs(a); }, data->args()), data};
}

void fill_inputs(const CaseArgs& args) {
  casefile::each_tensor(args, [](const char* name, const TensorView& view, casefile::Access access) {
    if (access != casefile::Access::kRead) return;
    const auto random = cases::Stream64{1}.child(name);
    uint64_t i = 0;
    casefile::for_each_run(view, [&](uint8_t* run, int64_t n) {
      for (int64_t at = 0; at < n; ++at) run[at] = static_cast<uint8_t>(random.bits(i++));
    });
  });
}

template <class Args>
OwnedCall permutation(errors::Call<Args> call) {
  CaseArgs args = call.args;
  fill_inputs(args);
  return {args, std::make_shared<errors::Memory>(std::move(call.memory))};
}

// Normal numbers in what has type bfloat16; the rest stays as it is.
OwnedCall token_sparse_gradients() {
  errors::Call<SparsePrefillBwdArgs> call = errors::sparse_prefill_bwd_call();
  casefile::each_tensor(CaseArgs(call.args), [](const char* name, const TensorView& view, casefile::Access) {
    if (view.dtype() != DType::kBF16) return;
    const auto random = cases::Stream64{2}.child(name);
    for (int64_t i = 0; i < view.numel(); ++i) {
      view.data_as<uint16_t>()[i] = f32_to_bf16_bits(random.normal(static_cast<uint64_t>(i)));
    }
  });
  return {call.args, std::make_shared<errors::Memory>(std::move(call.memory))};
}

void add_sequence_calls(cases::Selected selected, std::vector<OwnedCall>& calls) {
  cases::SequenceCase c;
  c.lengths_q = {20, 70};
  c.lengths_k = {30, 150};
  c.h_q = 2;
  c.causal = true;
  c.sink = cases::Sink::kFinite;
  c.selected = selected;
  c.packed = true;
  const auto data = std::make_shared<cases::SequenceData>(c);
  for (const cases::SequenceArgs& args : {data->forward(), data->backward()}) {
    calls.push_back({std::visit([](const auto& a) { return CaseArgs(a); }, args), data});
  }
}

// Small calls of every operator; of the attention operators as views into larger buffers.
std::vector<OwnedCall> some_calls() {
  std::vector<OwnedCall> calls;
  for (const cases::Op op : cases::all_ops()) {
    int taken = 0;
    for (const cases::Case& c : cases::smoke_cases(op)) {
      if (c.s_q == 0 || c.num_splits == 0 || c.layout != cases::Layout::kViews || taken == 2) continue;
      calls.push_back(call_of(c));
      ++taken;
    }
  }
  calls.push_back(permutation(errors::permute_q_b_proj_call()));
  calls.push_back(permutation(errors::permute_wv_proj_call()));
  calls.push_back(permutation(errors::expand_block_selection_call()));
  calls.push_back(permutation(errors::invert_block_selection_call()));
  calls.push_back(token_sparse_gradients());
  add_sequence_calls(cases::Selected::kNothing, calls);
  add_sequence_calls(cases::Selected::kPerHead, calls);
  return calls;
}

TEST(Replay, EveryOperatorByEveryKernel) {
  std::set<std::string> seen;
  for (const OwnedCall& call : some_calls()) {
    const std::string op = operator_name(call.args);
    SCOPED_TRACE(op);
    seen.insert(op);
    const Folder folder;
    save_case(folder.file("call"), call.args);
    const Outcome outcome = run_program("replay " + folder.file("call") + " --json " + folder.file("json"));
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, HasSubstr(folder.file("call") + ": " + op + "\n"));
    EXPECT_THAT(outcome.out, HasSubstr("\nall within their bounds\n"));

    const nlohmann::json report = read_json(folder.file("json"));
    EXPECT_EQ(report["ok"], true);
    EXPECT_EQ(report["operator"], op);
    EXPECT_EQ(report["has_data"], true);
    std::vector<std::string> ran;
    for (const auto& kernel : report["kernels"]) {
      if (kernel.contains("refusal")) continue;
      ran.push_back(kernel["kernel"]);
      EXPECT_GT(kernel["milliseconds"].get<double>(), 0);
      EXPECT_FALSE(kernel["outputs"].empty());
      for (const auto& output : kernel["outputs"]) EXPECT_EQ(output["ok"], true);
    }
    if (casefile::has_plan(call.args)) {
      EXPECT_THAT(ran, ::testing::IsSupersetOf(
                           testing::kernels_of(Device::cpu(), testing::multiplies_bf16(call.args))));
    } else {
      EXPECT_THAT(ran, ::testing::ElementsAre("cpu"));
    }
  }
  EXPECT_EQ(seen.size(), std::variant_size_v<CaseArgs>);
}

// The first output that is given.
TensorView main_output(const CaseArgs& args) {
  TensorView found;
  casefile::each_tensor(args, [&](const char*, const TensorView& view, casefile::Access access) {
    if (access != casefile::Access::kRead && !found) found = view;
  });
  return found;
}

TEST(Replay, AWrongResultIsSeen) {
  for (OwnedCall& call : some_calls()) {
    SCOPED_TRACE(operator_name(call.args));
    const Expectation expectation(call.args);
    std::visit(
        [](const auto& a) {
          if constexpr (requires { plan(a, Device::cpu()); }) {
            const Plan planned = plan(a, Device::cpu());
            run(planned, a, OwnedWorkspace(planned.workspace_bytes()));
          } else {
            errors::once(a);
          }
        },
        call.args);
    Replayed replayed{"toy", "", expectation.judge(call.args), 1.0};
    EXPECT_TRUE(all_kept({replayed})) << to_text({replayed});

    // The last byte holds a float's sign, or is one of a code of its own.
    std::vector<uint8_t*> last;
    casefile::for_each_run(main_output(call.args),
                           [&](uint8_t* run, int64_t bytes) { last.push_back(run + bytes - 1); });
    ASSERT_FALSE(last.empty());
    for (uint8_t* byte : last) *byte = static_cast<uint8_t>(*byte ^ 0xFF);
    replayed.judgements = expectation.judge(call.args);
    EXPECT_FALSE(all_kept({replayed}));
    EXPECT_THAT(to_text({replayed}), HasSubstr("BROKEN: "));
    EXPECT_THAT(to_text({replayed}), HasSubstr(" by toy: "));
    EXPECT_EQ(to_json({replayed})[0]["outputs"][0]["ok"], false);
  }
}

TEST(Replay, NoKernelIsNoSuccess) {
  EXPECT_FALSE(all_kept({}));
  EXPECT_FALSE(all_kept({{"toy", "it is too small", {}, 0}}));
  EXPECT_THAT(to_text({{"toy", "it is too small", {}, 0}}), HasSubstr("toy refused: it is too small\n"));
}

TEST(Replay, OneKernel) {
  const Folder folder;
  const auto call = errors::combine_partials_call();
  save_case(folder.file("call"), call.args);
  Outcome outcome =
      run_program("replay " + folder.file("call") + " --kernel cpu_baseline --json " + folder.file("json"));
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  const nlohmann::json report = read_json(folder.file("json"));
  ASSERT_EQ(report["kernels"].size(), 1u);
  EXPECT_EQ(report["kernels"][0]["kernel"], "cpu_baseline");

  outcome = run_program("replay " + folder.file("call") + " --kernel none");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.err,
            "tilewise replay: --kernel must be all, " + testing::table_text(false) + ", got none\n");
  EXPECT_EQ(outcome.out, "");
}

TEST(Replay, ARefusedCallIsRefusedAgain) {
  const Folder folder;
  auto call = errors::append_kv_call();
  call.args.slots = TensorView(call.args.slots.data(), DType::kFP32, {5});
  setenv("TILEWISE_SAVE_ON_ERROR", folder.path().c_str(), 1);
  const std::string text = casefile::text_of_error([&] { append_kv(call.args); });
  unsetenv("TILEWISE_SAVE_ON_ERROR");
  ASSERT_EQ(folder.names().size(), 1u);
  const std::string file = folder.file(folder.names()[0]);
  const Outcome outcome = run_program("replay " + file + " --json " + folder.file("json"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.out,
            file + ": append_kv\nrefused: append_kv: slots must be int32 or int64 [5], got float32 [5]\n");
  EXPECT_EQ(text, "append_kv: slots must be int32 or int64 [5], got float32 [5]");
  EXPECT_EQ(read_json(folder.file("json"))["refusal"], text);
  EXPECT_EQ(read_json(folder.file("json"))["ok"], false);
}

// Permutations have no plan that would refuse them.
TEST(Replay, ARefusedPermutationIsRefusedAgain) {
  const Folder folder;
  const auto expect_refusal = [&](const CaseArgs& args, const std::string& text) {
    save_case(folder.file("call"), args);
    const Outcome outcome = run_program("replay " + folder.file("call"));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(outcome.out, folder.file("call") + ": " + operator_name(args) + "\nrefused: " + text + "\n");
    EXPECT_EQ(outcome.err, "");
  };
  auto rows = errors::permute_q_b_proj_call();
  rows.args.h_q = 0;
  expect_refusal(rows.args, "permute_q_b_proj: h_q must be 1 to 2147483647, got 0");
  auto columns = errors::permute_wv_proj_call();
  columns.args.scales = {};
  expect_refusal(columns.args, "permute_wv_proj: scales must be given, got nothing");
}

TEST(Replay, ACallWithoutDataIsChecked) {
  // More than is saved; refused for its kernel's name, which is no part of the file.
  const Folder folder;
  const int64_t rows = 300 << 10;
  const auto x_bytes = static_cast<size_t>(rows) * 1024;
  const auto bytes = x_bytes + static_cast<size_t>(rows * record_bytes(Record::kV41Fp8, 512));
  void* zeros = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  auto call = errors::quantize_kv_call();
  call.args.record = Record::kV41Fp8;
  call.args.x = TensorView(zeros, DType::kBF16, {rows, 512});
  call.args.pages = TensorView(static_cast<char*>(zeros) + x_bytes, DType::kUInt8,
                               {rows / 64, 64, 1, record_bytes(Record::kV41Fp8, 512)});
  setenv("TILEWISE_SAVE_ON_ERROR", folder.path().c_str(), 1);
  const std::string text = casefile::text_of_error([&] { plan(call.args, Device::cpu(), {"none", 0}); });
  unsetenv("TILEWISE_SAVE_ON_ERROR");
  munmap(zeros, bytes);
  EXPECT_EQ(text, "quantize_kv: kernel must be " + testing::table_text(false) + ", got none");
  ASSERT_EQ(folder.names().size(), 1u);
  const std::string file = folder.file(folder.names()[0]);
  const Outcome outcome = run_program("replay " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, file + ": quantize_kv\nsaved without the tensors' contents: checked, not run\n");
}

// What `replay` does with files that load, or are refused for a reason.
TEST(Replay, DamagedFiles) {
  const std::vector<std::string> files = casefile::valid_files();
  const uint64_t count = casefile::damaged_files(650);
  uint64_t run = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(seed);
    std::string file = files[seed % files.size()];
    casefile::Damage(~seed).apply(file);
    try {
      const LoadedCase call =
          casefile::read_case({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
      explain_call(call.args());
      if (!call.has_data()) continue;
      const Expectation expectation(call.args());
      time_call(call.args(), {.kernel = {}, .threads = 1});
      Replayed replayed{"the best", "", expectation.judge(call.args()), 1.0};
      EXPECT_TRUE(all_kept({replayed})) << to_text({replayed});
      ++run;
    } catch (const casefile::BadContents& error) {
      EXPECT_THAT(error.what(), HasSubstr(" must be "));
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(" must be "));
    }
  }
  EXPECT_GT(run, count / 20);
}

TEST(Replay, BadFilesAndCommandLines) {
  const Folder folder;
  const auto expect_error = [&](const std::string& arguments, const std::string& text) {
    const Outcome outcome = run_program(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(outcome.err, text) << arguments;
  };
  const std::string path = folder.file("call");
  const std::string begin = "tilewise replay: load_case: " + path + ": ";
  expect_error("replay " + path, begin + "file must be readable, got No such file or directory\n");
  casefile::write_file(path, "");
  expect_error("replay " + path, begin + "file must be of at least 8 bytes, got 0 bytes\n");
  casefile::write_file(path, std::string(8, '\xff') + "{}");
  expect_error(
      "replay " + path,
      begin + "header must be of at most 2 bytes in a file of 10, got a length of 18446744073709551615\n");
  casefile::write_file(path, std::string("\x02\0\0\0\0\0\0\0{}", 10));
  expect_error("replay " + path, begin + "__metadata__: tilewise_case must be given, got nothing\n");
  expect_error("replay " + folder.path(), "tilewise replay: load_case: " + folder.path() +
                                              ": file must be readable, got Is a directory\n");
  const std::string usage = "Run tilewise --help, or tilewise <command> --help, for what there is.\n";
  expect_error("replay", "tilewise: file is required\n" + usage);
  expect_error("replay " + path + " --kernel ''", "tilewise: --kernel: it must not be empty\n" + usage);
  expect_error("replay " + path + " --threads 0",
               "tilewise: --threads: Value 0 not in range 1 to 4096\n" + usage);
}

}  // namespace
}  // namespace tilewise::tools
