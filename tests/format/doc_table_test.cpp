// The table of records in docs/kv-formats.md says what the library does.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "formats/record.h"
#include "tilewise/kv_format.h"

namespace tilewise {
namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" `");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" `") - first + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(trimmed(part));
  return parts;
}

// The rows whose first cell is a name in backquotes: name, bytes, d, planes, data, scales.
std::vector<std::vector<std::string>> table_rows() {
  std::ifstream file(std::string(TILEWISE_SOURCE_DIR) + "/docs/kv-formats.md");
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) == 0) rows.push_back(split(line.substr(1), '|'));
  }
  return rows;
}

// "2*d" or a number.
int64_t evaluated(const std::string& text, int64_t d) { return text == "2*d" ? 2 * d : std::stoll(text); }

TEST(DocTable, HasEveryRecordWithItsSizes) {
  const auto rows = table_rows();
  ASSERT_EQ(rows.size(), all_records().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    ASSERT_EQ(row.size(), 6u) << row[0];
    const Record record = all_records()[i];
    EXPECT_EQ(row[0], record_name(record));
    const auto dims = split(row[2], '/');
    ASSERT_FALSE(dims.empty());
    EXPECT_EQ(record_dim(record), dims.size() == 1 ? std::stoll(dims[0]) : 0) << row[0];
    for (int64_t d : {int64_t{512}, int64_t{576}}) {
      bool listed = false;
      for (const auto& dim : dims) listed = listed || std::stoll(dim) == d;
      EXPECT_EQ(record_bytes(record, d), listed ? evaluated(row[1], d) : 0) << row[0] << " d " << d;
    }
  }
}

TEST(DocTable, HasThePlanes) {
  for (const auto& row : table_rows()) {
    const auto record = record_from_name(row[0]);
    ASSERT_TRUE(record.has_value()) << row[0];
    const auto d = static_cast<int32_t>(std::stoll(split(row[2], '/')[0]));
    const formats::RecordSpec spec = formats::record_spec(*record, d);
    const auto planes = split(row[3], '+');
    ASSERT_EQ(planes.size(), static_cast<size_t>(spec.num_planes)) << row[0];
    for (size_t p = 0; p < planes.size(); ++p) {
      EXPECT_EQ(evaluated(planes[p], d), spec.plane_bytes[p]) << row[0] << " plane " << p;
    }
  }
}

}  // namespace
}  // namespace tilewise
