// The README says what the library does: its support table and its example are those of the code.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "cases/support_table.h"

// The example is a program: its main gets another name here.
#define main readme_example
#include "examples/readme_example.cpp"  // NOLINT(bugprone-suspicious-include)
#undef main

namespace tilewise {
namespace {

std::string file_text(const std::string& path) {
  std::ifstream file(std::string(TILEWISE_SOURCE_DIR) + "/" + path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// What stands between the line `begin` and the line `end`.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t start = text.find(begin + "\n");
  if (start == std::string::npos) throw std::runtime_error("no line " + begin);
  const size_t first = start + begin.size() + 1;
  const size_t last = text.find(end + "\n", first);
  if (last == std::string::npos) throw std::runtime_error("no line " + end);
  return text.substr(first, last - first);
}

TEST(Readme, HasTheSupportTable) {
  EXPECT_EQ(between(file_text("README.md"), "<!-- support-table -->", "<!-- /support-table -->"),
            cases::support_table())
      << "to be replaced by the output of: tilewise info --support-table";
}

TEST(Readme, ExampleWorks) { EXPECT_EQ(readme_example(), 0); }

TEST(Readme, HasTheExample) {
  EXPECT_EQ(between(file_text("README.md"), "<!-- example -->\n```cpp", "```\n<!-- /example -->"),
            file_text("examples/readme_example.cpp"));
}

}  // namespace
}  // namespace tilewise
