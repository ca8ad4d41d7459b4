// TILEWISE_SAVE_ON_ERROR: calls that raise leave a file that raises the same again.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ops/cached.h"
#include "tests/casefile/calls.h"
#include "tests/errors/refusal.h"

namespace tilewise::casefile {
namespace {

constexpr const char* kVariable = "TILEWISE_SAVE_ON_ERROR";

/// Sets the variable for a test.
class Saving {
 public:
  explicit Saving(const std::string& folder) { setenv(kVariable, folder.c_str(), 1); }
  ~Saving() { unsetenv(kVariable); }
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;
};

template <class Body>
std::string text_while_saving(const Folder& folder, const Body& body) {
  const Saving saving(folder.path());
  return text_of_error(body);
}

std::string only_file(const Folder& folder) {
  const std::vector<std::string> names = folder.names();
  EXPECT_EQ(names.size(), 1u);
  return names.empty() ? "" : folder.file(names[0]);
}

/// Leaves out the last tensor that must be there.
template <class Args>
void spoil(Args& args) {
  struct Spoiler {
    TensorView* last = nullptr;
    void tensor(const char* name, TensorView& view, Access access) {
      const bool optional = std::string_view(name) == "lse" || std::string_view(name) == "max_logits" ||
                            std::string_view(name) == "lse_indexer" || std::string_view(name) == "out_bf16" ||
                            std::string_view(name) == "kl_target";
      if (access != Access::kRead && !optional) last = &view;
    }
    void option(const char*, float&) {}
    void option(const char*, int64_t&) {}
    void option(const char*, bool&) {}
    void option(const char*, Record&) {}
    void option(const char*, Window&) {}
    void option(const char*, std::optional<float>&) {}
  };
  Spoiler spoiler;
  each_field(args, spoiler);
  *spoiler.last = TensorView();
}

TEST(SaveOnError, EveryEntryPointOfEveryOperator) {
  for (const AnyCall& call : every_call()) {
    SCOPED_TRACE(operator_name(call.args));
    std::visit(
        [&](auto args) {
          spoil(args);
          std::vector<std::function<void()>> entries = {[&] { errors::once(args); }};
          if constexpr (errors::kHasPlan<decltype(args)>) {
            const auto& valid = std::get<decltype(args)>(call.args);
            const Plan good = plan(valid, Device::cpu());
            entries.emplace_back([&] { plan(args, Device::cpu()); });
            entries.emplace_back([&, good] { run(good, args, OwnedWorkspace(good.workspace_bytes())); });
            entries.emplace_back(
                [&] { call_cached(args, Device::cpu(), [](size_t) { return Workspace(); }); });
          }
          for (const auto& entry : entries) {
            const std::string text = text_of_error(entry);
            ASSERT_NE(text, "nothing was thrown");
            const Folder folder;
            EXPECT_EQ(text_while_saving(folder, entry), text) << "the text gains nothing";
            const std::string file = only_file(folder);
            const std::string name = file.substr(file.rfind('/') + 1);
            EXPECT_EQ(name.rfind(std::string(operator_name(args)) + "-", 0), 0u) << name;
            const std::string end = "-" + std::to_string(getpid()) + ".safetensors";
            EXPECT_EQ(name.substr(name.size() - end.size()), end);
            const LoadedCase loaded = load_case(file);
            EXPECT_TRUE(loaded.has_data());
            EXPECT_EQ(lines_of(loaded.args()), lines_of(args));
            EXPECT_EQ(text_of_error([&] { plan_or_run(loaded.args()); }), text);
          }
        },
        call.args);
  }
}

TEST(SaveOnError, NothingWithoutTheVariableOrAnError) {
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  const Folder folder;
  {
    const Saving saving(folder.path());
    quantize_kv(call.args);
    setenv(kVariable, "", 1);
    call.args.record = Record::kAuto;
    EXPECT_NE(text_of_error([&] { quantize_kv(call.args); }), "nothing was thrown");
  }
  EXPECT_NE(text_of_error([&] { quantize_kv(call.args); }), "nothing was thrown");
  EXPECT_EQ(folder.names(), std::vector<std::string>());
}

TEST(SaveOnError, AFolderThatIsNotThereChangesNothing) {
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  call.args.record = Record::kAuto;
  const std::string text = text_of_error([&] { quantize_kv(call.args); });
  const Folder folder;
  const Saving saving(folder.file("none"));
  EXPECT_EQ(text_of_error([&] { quantize_kv(call.args); }), text);
  EXPECT_EQ(folder.names(), std::vector<std::string>());
}

/// The file of a call whose x is not what it says: shape and strides are saved, and that the contents are
/// not.
void expect_saved_without_data(const QuantizeKvArgs& args) {
  const std::string text = text_of_error([&] { quantize_kv(args); });
  ASSERT_NE(text, "nothing was thrown");
  const Folder folder;
  EXPECT_EQ(text_while_saving(folder, [&] { quantize_kv(args); }), text);
  const std::string file = only_file(folder);
  EXPECT_LT(read_file(file).size(), 2000u);
  const LoadedCase loaded = load_case(file);
  EXPECT_FALSE(loaded.has_data());
  EXPECT_EQ(lines_of(loaded.args(), false), lines_of(args, false));
  EXPECT_EQ(text_of_error([&] { plan_or_run(loaded.args()); }), text);
}

TEST(SaveOnError, MemoryThatIsNotThere) {
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* nothing = mmap(nullptr, 64 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  call.args.x = TensorView(nothing, DType::kBF16, {11, 576});
  call.args.record = Record::kAuto;
  expect_saved_without_data(call.args);
  munmap(nothing, 64 * page);
}

TEST(SaveOnError, TooMuchMemory) {
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  const size_t bytes = size_t{300} << 20;
  void* zeros = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(zeros, MAP_FAILED);
  call.args.x = TensorView(zeros, DType::kBF16, {300 << 10, 512});
  call.args.record = Record::kAuto;
  expect_saved_without_data(call.args);
  munmap(zeros, bytes);
}

TEST(SaveOnError, SizesThatNoMemoryHas) {
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  call.args.x = TensorView(call.args.x.data(), DType::kBF16, {int64_t{1} << 33, 576});
  expect_saved_without_data(call.args);
}

/// In a process of its own, as the limit is one of the process.
[[noreturn]] void save_until_the_limit(const std::string& folder) {
  const Saving saving(folder);
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  call.args.record = Record::kAuto;
  for (int i = 0; i < 250; ++i) text_of_error([&] { quantize_kv(call.args); });
  std::_Exit(0);
}

TEST(SaveOnErrorDeathTest, AProcessSavesAHundredCalls) {
  const Folder folder;
  EXPECT_EXIT(save_until_the_limit(folder.path()), ::testing::ExitedWithCode(0), "");
  const std::vector<std::string> names = folder.names();
  // This process may have used some of the numbers before it started the other one.
  EXPECT_LE(names.size(), 100u);
  EXPECT_GT(names.size(), 10u);
  for (const std::string& name : names) {
    const int number = std::stoi(name.substr(std::string("quantize_kv-").size()));
    EXPECT_TRUE(number >= 1 && number <= 100) << name;
  }
}

}  // namespace
}  // namespace tilewise::casefile
