// Exceptions of the library. All derive from tilewise::Error, which is a std::runtime_error.
#pragma once

#include <stdexcept>
#include <string>

namespace tilewise {

/// Base of everything the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A call's arguments break the operator's contract. Raised before anything is written; the text reads
/// "<operator>: <argument> must be <expected>, got <what came>".
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A CUDA call failed. The text names the operator, the kernel and its launch shape where there is one, and
/// CUDA's own message.
class CudaError : public Error {
 public:
  using Error::Error;
};

}  // namespace tilewise
