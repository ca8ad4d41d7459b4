// Threads, streams and scratch memory of torch's calls.
#include "call.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>

namespace tilewise::bindings {
namespace {

constexpr int64_t kMaxThreads = 1 << 16;

std::atomic<int> threads_set{0};

/// torch's current CUDA stream. Only builds of torch with CUDA have the function, so it is looked up by name.
void* current_cuda_stream(int32_t device) {
  using Function = AOTITorchError (*)(int32_t, void**);
  static void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  static const auto function =
      library == nullptr ? nullptr
                         : reinterpret_cast<Function>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  if (function == nullptr) throw Error("this build of torch knows no CUDA streams");
  void* stream = nullptr;
  check_torch(function(device, &stream), "get_current_cuda_stream");
  return stream;
}

}  // namespace

int num_threads() {
  if (const int set = threads_set.load(std::memory_order_relaxed); set > 0) return set;
  uint32_t threads = 1;
  check_torch(torch_get_num_threads(&threads), "get_num_threads");
  return static_cast<int>(std::max<uint32_t>(threads, 1));
}

void set_num_threads(int64_t threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw InvalidArgument(fmt::format("set_num_threads: n must be 0 to {}, got {}", kMaxThreads, threads));
  }
  threads_set.store(static_cast<int>(threads), std::memory_order_relaxed);
}

Device device_for(DeviceId id) {
  if (id.type == DeviceType::kCuda) {
    static thread_local std::unordered_map<int32_t, Device> known;
    const auto found = known.find(id.index);
    return found != known.end() ? found->second
                                : known.emplace(id.index, Device::cuda(id.index)).first->second;
  }
  static const Device cpu = Device::cpu();
  Device device = cpu;
  device.threads = num_threads();
  return device;
}

Workspace workspace_for(DeviceId id, size_t bytes, OwnedTensor* owner) {
  if (id.type == DeviceType::kCpu) {
    static thread_local OwnedWorkspace memory(0);
    static thread_local size_t size = 0;
    if (bytes > size) {
      size = 0;
      memory = OwnedWorkspace(0);  // before the larger one, not beside it
      memory = OwnedWorkspace(bytes);
      size = bytes;
    }
    return memory;
  }
  if (bytes == 0) return {};
  // torch's allocator keeps the memory, in stream order, and knows about captured graphs.
  const auto count = static_cast<int64_t>(bytes);
  const int64_t stride = 1;
  *owner = new_tensor(id, DType::kUInt8, &count, &stride, 1);
  return {view_of(owner->get(), true).data(), bytes};
}

DeviceScope::DeviceScope(DeviceId id) {
  if (id.type == DeviceType::kCpu) return;
  // The library does that as well, but torch's guard goes back to a device without opening it.
  int32_t current = -1;
  check_torch(aoti_torch_get_current_device_index(&current), "get_current_device_index");
  if (current != id.index) {
    check_torch(aoti_torch_create_device_guard(id.index, &guard_), "create_device_guard");
  }
  try {
    stream_.handle = current_cuda_stream(id.index);
  } catch (...) {
    if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
    throw;
  }
}

DeviceScope::~DeviceScope() {
  if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
}

}  // namespace tilewise::bindings
