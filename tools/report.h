// What the program prints: progress while it works, then one table.
#pragma once

#include <nlohmann/json.hpp>
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

// Rows below a header, columns as wide as their longest entry.
std::string to_table(const std::vector<Row>& rows);
nlohmann::json to_json(const std::vector<Row>& rows);

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
