// Random damage to case files.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/casefile/calls.h"

namespace tilewise::casefile {

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

// A case file of every operator.
inline std::vector<std::string> valid_files() {
  std::vector<std::string> files;
  const Folder folder;
  for (const AnyCall& call : every_call()) {
    save_case(folder.file("call"), call.args);
    files.push_back(read_file(folder.file("call")));
  }
  return files;
}

// How many damaged files a test tries: `usual`, or what TILEWISE_FUZZ_FILES says for a long run by hand.
inline uint64_t damaged_files(uint64_t usual) {
  const char* wanted = std::getenv("TILEWISE_FUZZ_FILES");
  return wanted == nullptr ? usual : std::stoull(wanted);
}

}  // namespace tilewise::casefile
