// Runs a library call for torch: its threads, its device's stream, plans and scratch memory that stay with
// the thread.
#pragma once

#include "convert.h"
#include "ops/cached.h"

namespace tilewise::bindings {

/// Threads that CPU operators use: those of set_num_threads, or torch's own count.
int num_threads();
/// 0: follow torch. Throws InvalidArgument below.
void set_num_threads(int64_t threads);

/// What the library plans for. The CPU's features are asked for once.
Device device_for(DeviceId id);

/// Scratch memory for one call: on the CPU this thread's, kept from call to call; elsewhere torch's, which
/// `owner` holds.
Workspace workspace_for(DeviceId id, size_t bytes, OwnedTensor* owner);

/// torch's current work queue of the device; makes the device the current one while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(DeviceId id);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  Stream stream() const { return stream_; }

 private:
  DeviceGuardHandle guard_ = nullptr;
  Stream stream_;
};

template <class Args>
void call(const Args& args, DeviceId id) {
  const DeviceScope scope(id);
  OwnedTensor memory;
  const auto workspace = [&](size_t bytes) { return workspace_for(id, bytes, &memory); };
  call_cached(args, device_for(id), workspace, scope.stream());
}

// These need neither plan nor workspace.
inline void call(const PermuteQBProjArgs& args, DeviceId id) {
  permute_q_b_proj(args, DeviceScope(id).stream());
}
inline void call(const PermuteWvProjArgs& args, DeviceId id) {
  permute_wv_proj(args, DeviceScope(id).stream());
}
inline void call(const ExpandBlockSelectionArgs& args, DeviceId) { expand_block_selection(args); }
inline void call(const InvertBlockSelectionArgs& args, DeviceId) { invert_block_selection(args); }

}  // namespace tilewise::bindings
