// Random damage to valid case files: each is refused by a CaseFileError or is a call that can be made.
#include <gtest/gtest.h>

#include <random>

#include "casefile/json.h"
#include "casefile/load.h"
#include "tests/casefile/calls.h"

namespace tilewise::casefile {
namespace {

class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {}

  // One to four changes of any kind, most of them in the header.
  void apply(std::string& file) {
    for (size_t i = 1 + below(4); i > 0 && !file.empty(); --i) change(file);
  }

 private:
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  size_t place(const std::string& file) {
    return below(below(4) == 0 ? file.size() : std::min<size_t>(file.size(), 3000));
  }

  void change(std::string& file) {
    static constexpr std::string_view kPieces[] = {"9223372036854775807",
                                                   "-1",
                                                   "18446744073709551615",
                                                   "1e400",
                                                   "null",
                                                   "[]",
                                                   "{}",
                                                   "\"",
                                                   "[",
                                                   "]",
                                                   "{",
                                                   "}",
                                                   ",",
                                                   ":",
                                                   "0",
                                                   "1",
                                                   "2048",
                                                   "\\",
                                                   "\n"};
    const size_t at = place(file);
    switch (below(7)) {
      case 0:
        file[at] = static_cast<char>(random_());
        break;
      case 1:
        file.resize(at);
        break;
      case 2:
        file.erase(at, 1 + below(20));
        break;
      case 3:
        file.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 4:
        file.insert(at, file.substr(place(file), below(200)));
        break;
      default:
        change_number(file, at);
    }
  }

  // The next digit becomes another one, so that the file keeps its form.
  void change_number(std::string& file, size_t at) {
    const size_t digit = file.find_first_of("0123456789", at);
    if (digit != std::string::npos) file[digit] = static_cast<char>('0' + below(10));
  }

  std::mt19937_64 random_;
};

std::vector<std::string> valid_files() {
  std::vector<std::string> files;
  const Folder folder;
  for (const AnyCall& call : every_call()) {
    save_case(folder.file("call"), call.args);
    files.push_back(read_file(folder.file("call")));
  }
  return files;
}

// Runs what can be planned.
void use(const LoadedCase& loaded) {
  lines_of(loaded.args(), loaded.has_data());
  try {
    if (!loaded.has_data() && !has_plan(loaded.args())) return;
    plan_or_run(loaded.args());
    if (!loaded.has_data()) return;
    std::visit(
        [](const auto& a) {
          if constexpr (requires { plan(a, Device::cpu()); }) {
            const Plan planned = plan(a, Device::cpu());
            const OwnedWorkspace workspace(planned.workspace_bytes());
            run(planned, a, workspace);
          }
        },
        loaded.args());
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()), "");
  }
}

TEST(Fuzz, DamagedFilesAreRefusedOrUsable) {
  const std::vector<std::string> files = valid_files();
  int refused = 0;
  int loaded = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    std::string file = files[seed % files.size()];
    Damage(seed).apply(file);
    SCOPED_TRACE(seed);
    try {
      const LoadedCase call = read_case({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
      ++loaded;
      use(call);
    } catch (const BadContents& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find(" must be "), std::string::npos) << error.what();
    }
  }
  // Both happen, or the damage is of no use.
  EXPECT_GT(refused, 1000);
  EXPECT_GT(loaded, 300);
}

}  // namespace
}  // namespace tilewise::casefile
