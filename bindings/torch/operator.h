// Both forms of a torch operator from one description: how its arguments are read, which outputs the overload
// `out` takes, and how the functional form allocates them.
//
// A description has kName, Args, read(), take() and allocate(); Args is the library's argument struct, or one
// made from it with a call() of its own beside it.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

#include "call.h"

namespace tilewise::bindings {

template <class Operator>
void call_functional(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in(Operator::kName, stack, num_inputs);
  typename Operator::Args args;
  Operator::read(in, args);
  in.finish();
  Outputs outputs(in.device());
  Operator::allocate(outputs, args);
  call(args, in.device());
  outputs.give(stack);
}

template <class Operator>
void call_out(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in(Operator::kName, stack, num_inputs);
  typename Operator::Args args;
  Operator::read(in, args);
  Operator::take(in, args);
  in.finish();
  call(args, in.device());
}

template <class Operator>
void implement_out(torch::stable::detail::StableLibrary& library) {
  library.impl((std::string(Operator::kName) + ".out").c_str(), &call_out<Operator>);
}

/// The functional form that torch does not differentiate.
template <class Operator>
void implement_no_grad(torch::stable::detail::StableLibrary& library) {
  library.impl((std::string(Operator::kName) + "_no_grad").c_str(), &call_functional<Operator>);
}

template <class Operator>
void implement(torch::stable::detail::StableLibrary& library) {
  library.impl(Operator::kName, &call_functional<Operator>);
  implement_out<Operator>(library);
}

}  // namespace tilewise::bindings
