// Calls that raise become case files where the environment's TILEWISE_SAVE_ON_ERROR names a folder.
#pragma once

#include <exception>

#include "tilewise/case_file.h"

namespace tilewise::casefile {

void save_on_error(const CaseArgs& args) noexcept;

/// What `call` gives for these arguments.
template <class Args, class Call>
auto or_saved(const Args& args, const Call& call) {
  try {
    return call();
  } catch (const std::exception&) {
    save_on_error(args);
    throw;
  }
}

}  // namespace tilewise::casefile
