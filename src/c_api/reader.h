// From the members of a C struct to those of a C++ one.
#pragma once

#include <algorithm>
#include <cstring>

#include "tilewise/c_api.h"
#include "tilewise/kv_format.h"
#include "tilewise/mask.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise::c_api {

/// Throws InvalidArgument with the operator's and the argument's name.
class Reader {
 public:
  explicit Reader(const char* op) : op_(op) {}

  /// The caller's struct as this library knows it: members that the caller does not know are 0. No struct has
  /// grown yet, so each has at least the size that it has here.
  template <class Args>
  Args known(const Args* given) const {
    must_be_given("args", given);
    check_size(given, sizeof(Args));
    Args copy;
    std::memcpy(&copy, given, sizeof(Args));
    return copy;
  }

  TensorView tensor(const char* name, const DLTensor* tensor) const;
  /// NULL is kAuto.
  Record record(const char* name, const char* text) const;
  static Window window(const int64_t* sides) {
    return sides == nullptr ? Window() : Window{sides[0], sides[1]};
  }
  static int64_t or_default(int64_t value, int64_t otherwise) { return value == 0 ? otherwise : value; }

  void must_be_given(const char* name, const void* pointer) const;
  const char* op() const { return op_; }

 private:
  /// `args` begins with its size.
  void check_size(const void* args, size_t known) const;

  const char* op_;
};

}  // namespace tilewise::c_api
