// Random damage to valid case files: each is refused by a CaseFileError or is a call that can be made.
#include <gtest/gtest.h>

#include "casefile/json.h"
#include "casefile/load.h"
#include "tests/casefile/damage.h"

namespace tilewise::casefile {
namespace {

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
  const uint64_t count = damaged_files(3000);
  uint64_t refused = 0;
  uint64_t loaded = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
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
  EXPECT_GT(refused, count / 6);
  EXPECT_GT(loaded, count / 20);
}

}  // namespace
}  // namespace tilewise::casefile
