// Plan and run: what every operator has in common.
//
//   Plan p = plan(args, Device::cpu());               // checks args, picks a kernel, books workspace
//   OwnedWorkspace ws(p.workspace_bytes());
//   run(p, args, ws);                                 // the same shapes with any data, as often as wanted
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/device.h"

namespace tilewise {

/// How to choose and run a kernel.
struct PlanOptions {
  /// Name of the kernel to use, for example "cpu_avx2"; its refusal becomes the error. Empty: the first
  /// kernel of the operator's table that supports the call, or the one named by the environment's
  /// TILEWISE_KERNEL.
  std::string kernel;
  /// Threads to use; 0: Device::threads. Results do not depend on it.
  int threads = 0;
};

/// Work queue of the device. The CPU has none; CUDA: a cudaStream_t.
struct Stream {
  void* handle = nullptr;
};

/// Caller's scratch memory for one running call: at least Plan::workspace_bytes() bytes, 64-byte aligned, on
/// the operator's device. Its contents do not matter before a call and are unspecified after.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

/// Scratch memory on the CPU that owns itself, for those who do not manage their own.
class OwnedWorkspace {
 public:
  explicit OwnedWorkspace(size_t bytes);
  operator Workspace() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

struct PlanState;

/// An operator's checked shape, the kernel that will run it and the workspace it needs. A cheap value to
/// copy; holds no pointers to tensors, so it serves every call of the same shapes, dtypes and options.
class Plan {
 public:
  /// Operator's name, for example "sparse_decode".
  const std::string& op() const;
  /// Name of the chosen kernel.
  const std::string& kernel() const;
  size_t workspace_bytes() const;
  /// One printable line: operator, shape, kernel, threads, workspace.
  std::string describe() const;

  explicit Plan(std::shared_ptr<const PlanState> state) : state_(std::move(state)) {}
  const PlanState& state() const { return *state_; }

 private:
  std::shared_ptr<const PlanState> state_;
};

/// One row of an operator's kernel table, judged for one call.
struct KernelVerdict {
  std::string kernel;
  std::string refusal;  ///< empty: supported; otherwise the reason
};

}  // namespace tilewise
