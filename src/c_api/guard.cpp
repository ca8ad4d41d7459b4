// Statuses, and the message of each thread.
#include "c_api/guard.h"

#include <fmt/format.h>

#include <new>

namespace tilewise::c_api {
namespace {

struct Message {
  std::string text;
  const char* shown = "";
};
thread_local Message message;

void note(const char* op, const char* before, const char* what) noexcept {
  try {
    message.text = op == nullptr ? what : fmt::format("{}: {}{}", op, before, what);
    message.shown = message.text.c_str();
  } catch (...) {
    message.shown = "out of memory";
  }
}

}  // namespace

TilewiseStatus note_exception(const char* op) noexcept {
  try {
    throw;
  } catch (const WorkspaceTooSmall& error) {
    note(nullptr, "", error.what());
    return kTilewiseWorkspaceTooSmall;
  } catch (const InvalidArgument& error) {
    note(nullptr, "", error.what());
    return kTilewiseInvalidArgument;
  } catch (const std::bad_alloc&) {
    note(op, "", "out of memory");
    return kTilewiseOutOfMemory;
  } catch (const std::exception& error) {
    note(op, "internal error: ", error.what());
    return kTilewiseInternalError;
  } catch (...) {
    note(op, "internal error: ", "an exception of an unknown type");
    return kTilewiseInternalError;
  }
}

const char* last_error() noexcept { return message.shown; }

}  // namespace tilewise::c_api
