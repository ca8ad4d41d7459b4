// What the program prints: progress while it works, then one table.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/bound.h"

namespace tilewise::tools {

// One measured call.
struct Row {
  std::string op;
  std::string records;  // or the dtype, where there are no records
  std::string shape;
  std::string kernel;
  reference::Comparison comparison;
  double milliseconds = 0;
  double rate = 0;
  std::string unit;  // of the rate
};

using Cells = std::vector<std::string>;

// The first of the lines is the header. Columns are as wide as their longest entry; those from `right_from`
// on are aligned to the right.
std::string align(const std::vector<Cells>& lines, size_t right_from);

// Error, bound and their ratio, as three cells.
Cells comparison_cells(const reference::Comparison& comparison);
// The same as members of a JSON object.
void add_comparison(nlohmann::json& entry, const reference::Comparison& comparison);

std::string to_table(const std::vector<Row>& rows);
nlohmann::json to_json(const std::vector<Row>& rows);

// A command line that asks for what there is not.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file that a report goes to. It is opened before the work begins, so that a long run does not end with
// nowhere to write.
class JsonFile {
 public:
  // Throws UsageError where the file cannot be written. An empty path: no file.
  explicit JsonFile(std::string path);
  // A file that was not there before and got no report goes away again.
  ~JsonFile();
  JsonFile(const JsonFile&) = delete;
  JsonFile& operator=(const JsonFile&) = delete;

  void write(const nlohmann::json& report);

 private:
  std::string path_;
  bool unfinished_ = false;
};

// Says on stderr what is being done: a bar on a terminal, otherwise a line a step.
class Progress {
 public:
  explicit Progress(int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const std::string& what);

 private:
  int steps_;
  int done_ = 0;
  bool terminal_;
};

}  // namespace tilewise::tools
