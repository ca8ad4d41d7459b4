// From exceptions to statuses and messages.
#pragma once

#include <string>

#include "tilewise/c_api.h"
#include "tilewise/error.h"

namespace tilewise::c_api {

/// The caller's workspace has fewer bytes than the plan asks for.
class WorkspaceTooSmall : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Inside a catch block: the status of what was thrown, whose text becomes this thread's message.
TilewiseStatus note_exception(const char* op) noexcept;

/// This thread's message.
const char* last_error() noexcept;

template <class Body>
TilewiseStatus guarded(const char* op, const Body& body) noexcept {
  try {
    body();
    return kTilewiseOk;
  } catch (...) {
    return note_exception(op);
  }
}

}  // namespace tilewise::c_api
