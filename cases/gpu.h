// Calls on a CUDA device whose tensors lie in host memory: mirrors of them are made there, fenced as on the
// host. A build without CUDA refuses them (gpu_absent.cpp).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "cases/data.h"
#include "tilewise/case_file.h"

namespace tilewise::cases {

// The same views, said to lie on `device`: what plan() and explain() ask for.
Args on_device(const Args& args, DeviceId device);

// A call's tensors on a CUDA device. Each has its own allocation of exactly its bytes, between margins of
// canaries, and begins at the host's address modulo 256. While the environment has TILEWISE_GPU_BARE=1 there
// are no margins and the workspace is not written: for compute-sanitizer, which then sees every stray access
// and every uninitialised read.
class GpuMirror {
 public:
  // The host's memory must outlive the mirror.
  GpuMirror(const CaseArgs& host, const Device& device, size_t workspace_bytes);
  GpuMirror(const Args& host, const Device& device, size_t workspace_bytes)
      : GpuMirror(std::visit([](const auto& a) { return CaseArgs(a); }, host), device, workspace_bytes) {}
  ~GpuMirror();
  GpuMirror(const GpuMirror&) = delete;
  GpuMirror& operator=(const GpuMirror&) = delete;

  const CaseArgs& args() const;  // views on the device
  Workspace workspace() const;
  Stream stream() const;  // not the default stream; of this mirror alone

  // All tensors as the host has them now, fresh margins, NaN in the workspace. Waits for the copies.
  void upload();
  // On stream(), without waiting; the second one a weight permutation, which has no plan.
  void run(const Plan& plan);
  void run();
  void wait();  // for stream()
  // Waits, then brings the outputs' elements to the host. Returns what else has changed on the
  // device: bytes of an input, between an output's elements, or of a margin; empty if nothing has.
  std::string download();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Uploads, runs, waits and downloads. Throws Error when memory was disturbed, and CudaError.
void run_on_gpu(const Plan& plan, const Args& args);

}  // namespace tilewise::cases
