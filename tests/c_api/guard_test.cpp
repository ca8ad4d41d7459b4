// The parts of the C interface that a C caller cannot provoke: faults of the library itself, and messages of
// several threads.
#include "c_api/guard.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <thread>

namespace tilewise::c_api {
namespace {

template <class Exception>
TilewiseStatus status_of(const Exception& exception) {
  return guarded("toy", [&] { throw exception; });
}

TEST(Guard, EveryExceptionHasAStatusAndAMessage) {
  EXPECT_EQ(status_of(InvalidArgument("toy: x must be 1, got 2")), kTilewiseInvalidArgument);
  EXPECT_STREQ(tilewise_last_error(), "toy: x must be 1, got 2");
  EXPECT_EQ(status_of(WorkspaceTooSmall("toy: workspace must be of at least 2 bytes, got 1 bytes")),
            kTilewiseWorkspaceTooSmall);
  EXPECT_STREQ(tilewise_last_error(), "toy: workspace must be of at least 2 bytes, got 1 bytes");
  EXPECT_EQ(status_of(std::bad_alloc()), kTilewiseOutOfMemory);
  EXPECT_STREQ(tilewise_last_error(), "toy: out of memory");
  EXPECT_EQ(status_of(std::logic_error("no such tile")), kTilewiseInternalError);
  EXPECT_STREQ(tilewise_last_error(), "toy: internal error: no such tile");
  EXPECT_EQ(status_of(42), kTilewiseInternalError);
  EXPECT_STREQ(tilewise_last_error(), "toy: internal error: an exception of an unknown type");
}

TEST(Guard, SuccessKeepsTheMessage) {
  status_of(std::bad_alloc());
  EXPECT_EQ(guarded("toy", [] {}), kTilewiseOk);
  EXPECT_STREQ(tilewise_last_error(), "toy: out of memory");
}

TEST(Guard, EachThreadHasItsMessage) {
  status_of(InvalidArgument("of the first thread"));
  std::string before;
  std::string after;
  std::thread([&] {
    before = tilewise_last_error();
    status_of(InvalidArgument("of the second thread"));
    after = tilewise_last_error();
  }).join();
  EXPECT_EQ(before, "");
  EXPECT_EQ(after, "of the second thread");
  EXPECT_STREQ(tilewise_last_error(), "of the first thread");
}

}  // namespace
}  // namespace tilewise::c_api
