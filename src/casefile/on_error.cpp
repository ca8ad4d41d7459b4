// Saving of calls that raised.
#include "casefile/on_error.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "casefile/json.h"
#include "casefile/save.h"

namespace tilewise::casefile {
namespace {

constexpr int64_t kMaxData = int64_t{256} << 20;
// A server that meets one bad call a step must not fill its disk.
constexpr int64_t kMaxFiles = 100;

std::atomic<int64_t> last_number{0};

// Whether the file was free to take.
bool save_as(const std::string& path, const Outline& outline, bool with_data) {
  OutputFile file(path, OutputFile::Existing::kRefuse);
  if (!file.is_open()) return false;
  outline.write(file, with_data);
  return true;
}

bool save(const std::string& path, const Outline& outline) {
  if (outline.data_bytes() <= kMaxData) {
    try {
      return save_as(path, outline, true);
    } catch (const BadContents&) {  // NOLINT(bugprone-empty-catch)
      // A view that claims memory which is not there may be what the call was refused for.
    }
  }
  return save_as(path, outline, false);
}

}  // namespace

void save_on_error(const CaseArgs& args) noexcept {
  const char* folder = std::getenv("TILEWISE_SAVE_ON_ERROR");
  if (folder == nullptr || *folder == '\0' || last_number >= kMaxFiles) return;
  try {
    const Outline outline(args);
    for (int64_t number = ++last_number; number <= kMaxFiles; number = ++last_number) {
      const std::string path =
          fmt::format("{}/{}-{}-{}.safetensors", folder, operator_name(args), number, getpid());
      if (save(path, outline)) return;
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // The call's own exception is what the caller must see.
  }
}

}  // namespace tilewise::casefile
