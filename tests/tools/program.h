// Runs the program `tilewise` as a user would.
#pragma once

#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/casefile/calls.h"

namespace tilewise::tools {

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

// The arguments as a shell understands them.
inline Outcome run_program(const std::string& arguments) {
  const casefile::Folder folder;
  const std::string command = std::string("'") + TILEWISE_PROGRAM_PATH + "' " + arguments + " >" +
                              folder.file("out") + " 2>" + folder.file("err");
  const int status =
      std::system(command.c_str());  // NOLINT(bugprone-command-processor): that is what is tested
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, casefile::read_file(folder.file("out")),
          casefile::read_file(folder.file("err"))};
}

inline nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(casefile::read_file(path));
}

}  // namespace tilewise::tools
