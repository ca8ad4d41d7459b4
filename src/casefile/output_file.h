// A file that is written from memory which may turn out not to be there.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tilewise::casefile {

/// The file disappears with this object unless it has been kept. Throws BadContents where the system refuses.
class OutputFile {
 public:
  enum class Existing { kReplace, kRefuse };

  OutputFile(std::string path, Existing existing);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Whether there is a file to write: not where Existing::kRefuse met one.
  bool is_open() const { return file_ >= 0; }

  /// The bytes are read when they are written, at the latest in keep(). The system reads them, which refuses
  /// memory that is not there where a read of our own would end the process.
  void append(const void* bytes, size_t count);
  void keep();

 private:
  void write_pending();

  std::string path_;
  int file_ = -1;
  bool kept_ = false;
  std::vector<iovec> pending_;
};

}  // namespace tilewise::casefile
