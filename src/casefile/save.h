// Writing of case files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "casefile/output_file.h"
#include "tilewise/case_file.h"

namespace tilewise::casefile {

/// What a case file says about a call, and the tensors whose contents follow.
class Outline {
 public:
  /// Throws BadContents for tensors that do not lie on the CPU.
  explicit Outline(const CaseArgs& args);

  /// Bytes of all contents.
  int64_t data_bytes() const { return data_bytes_; }
  /// Throws BadContents.
  void write(OutputFile& file, bool with_data) const;

 private:
  std::map<std::string, std::string> metadata_;
  std::vector<std::pair<std::string, TensorView>> stored_;
  int64_t data_bytes_ = 0;
};

}  // namespace tilewise::casefile
