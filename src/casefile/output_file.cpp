// Files through the system's own calls.
#include "casefile/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "casefile/json.h"

namespace tilewise::casefile {
namespace {

constexpr size_t kMaxPending = 1024;  // what the system takes at once

[[noreturn]] void refuse(int error) {
  const std::string got = std::generic_category().message(error);
  if (error == EFAULT) throw BadContents("tensors", "readable memory", got);
  throw BadContents("file", "writable", got);
}

}  // namespace

OutputFile::OutputFile(std::string path, Existing existing) : path_(std::move(path)) {
  const int how = existing == Existing::kReplace ? O_TRUNC : O_EXCL;
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0666);
  if (file_ < 0 && !(existing == Existing::kRefuse && errno == EEXIST)) refuse(errno);
}

OutputFile::~OutputFile() {
  if (file_ < 0) return;
  close(file_);
  if (!kept_) unlink(path_.c_str());
}

void OutputFile::append(const void* bytes, size_t count) {
  if (count == 0) return;
  pending_.push_back({const_cast<void*>(bytes), count});
  if (pending_.size() == kMaxPending) write_pending();
}

void OutputFile::keep() {
  write_pending();
  if (close(std::exchange(file_, -1)) != 0) {
    const int error = errno;
    unlink(path_.c_str());
    refuse(error);
  }
  kept_ = true;
}

void OutputFile::write_pending() {
  size_t first = 0;
  while (first < pending_.size()) {
    const ssize_t written = writev(file_, pending_.data() + first, static_cast<int>(pending_.size() - first));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(errno);
    auto left = static_cast<size_t>(written);
    for (; first < pending_.size() && left >= pending_[first].iov_len; ++first)
      left -= pending_[first].iov_len;
    if (left > 0) {
      pending_[first].iov_base = static_cast<char*>(pending_[first].iov_base) + left;
      pending_[first].iov_len -= left;
    }
  }
  pending_.clear();
}

}  // namespace tilewise::casefile
