// What every operator with a plan does with its C struct: `convert(reader, struct)`, found where the struct
// is known, makes the C++ one.
#pragma once

#include "c_api/guard.h"
#include "c_api/reader.h"

namespace tilewise::c_api {

template <class C>
PlanOptions options_of(const C& c) {
  return {c.kernel == nullptr ? "" : c.kernel, c.threads};
}

template <class C>
TilewiseStatus give_workspace(const char* op, const C* given, size_t* bytes) {
  return guarded(op, [&] {
    const Reader read(op);
    const C c = read.known(given);
    read.must_be_given("bytes", bytes);
    *bytes = plan(convert(read, c), Device::cpu(), options_of(c)).workspace_bytes();
  });
}

template <class C>
TilewiseStatus call(const char* op, const C* given, void* memory, size_t bytes) {
  return guarded(op, [&] {
    const Reader read(op);
    const C c = read.known(given);
    const auto args = convert(read, c);
    const Plan planned = plan(args, Device::cpu(), options_of(c));
    if (memory == nullptr) {
      const OwnedWorkspace workspace(planned.workspace_bytes());
      run(planned, args, workspace);
      return;
    }
    try {
      run(planned, args, {memory, bytes});
    } catch (const InvalidArgument& error) {
      if (bytes < planned.workspace_bytes()) throw WorkspaceTooSmall(error.what());
      throw;
    }
  });
}

}  // namespace tilewise::c_api
