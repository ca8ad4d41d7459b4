// Mirrors of a call's tensors on a CUDA device.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "casefile/fields.h"
#include "casefile/runs.h"
#include "cases/cuda/nonzero.h"
#include "cases/gpu.h"
#include "cases/memory.h"
#include "core/footprint.h"
#include "core/kernel_table.h"
#include "cuda/common/launch.h"
#include "tilewise/error.h"

namespace tilewise::cases {
namespace {

using casefile::Access;
using cuda::check_cuda;

constexpr int64_t kPhases = 256;  // host and device addresses are equal modulo this
constexpr int64_t kMargin = 256;
// A larger range is taken for address space of which little is in use: what no element's page holds is zero.
constexpr int64_t kWideBytes = int64_t{256} << 20;
// Calls with more on the device than this run one after another, in all processes of this machine.
constexpr int64_t kAloneBytes = int64_t{4} << 30;
constexpr uint8_t kWorkspaceCanary = 0xA5;

bool bare() {
  const char* set = std::getenv("TILEWISE_GPU_BARE");
  return set != nullptr && std::string_view(set) == "1";
}

// Held by one process at a time while it lives.
class Turn {
 public:
  Turn() {
    const auto path = std::filesystem::temp_directory_path() / "tilewise_gpu_turn.lock";
    file_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (file_ < 0 || flock(file_, LOCK_EX) != 0) throw Error("cannot lock " + path.string());
  }
  ~Turn() { close(file_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  int file_ = -1;
};

// Device memory between margins; its first byte's address is `phase` modulo kPhases.
class DeviceMemory {
 public:
  DeviceMemory(int64_t bytes, int64_t phase, const std::string& what)
      : bytes_(bytes), margin_(bare() ? 0 : kMargin), before_(margin_ + phase) {
    check_cuda(cudaMalloc(&memory_, static_cast<size_t>(std::max<int64_t>(whole_bytes(), 1))), what);
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        bytes_(other.bytes_),
        margin_(other.margin_),
        before_(other.before_) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory() { static_cast<void>(cudaFree(memory_)); }

  uint8_t* whole() const { return static_cast<uint8_t*>(memory_); }
  uint8_t* data() const { return whole() + before_; }
  int64_t bytes() const { return bytes_; }
  int64_t before() const { return before_; }
  int64_t after() const { return margin_; }
  int64_t whole_bytes() const { return before_ + bytes_ + margin_; }

 private:
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
  int64_t margin_ = 0;
  int64_t before_ = 0;
};

// A part of an allocation and what it has to hold.
struct Piece {
  int64_t offset = 0;
  std::vector<uint8_t> bytes;
};

struct Range {
  const uint8_t* first = nullptr;
  int64_t bytes = 0;
};

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

const uint8_t* page_of(const uint8_t* p) {
  return p - reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(page_bytes());
}

bool is_zero(const uint8_t* p, int64_t bytes) {
  return bytes == 0 || (*p == 0 && std::memcmp(p, p + 1, static_cast<size_t>(bytes) - 1) == 0);
}

void append(std::vector<Range>& ranges, Range next) {
  if (!ranges.empty()) {
    Range& last = ranges.back();
    const uint8_t* end = std::max(last.first + last.bytes, next.first + next.bytes);
    if (next.first >= last.first && next.first <= last.first + last.bytes) {
      last.bytes = end - last.first;
      return;
    }
  }
  ranges.push_back(next);
}

// The pages of `range` that have been touched; of an input only those that hold anything.
std::vector<Range> touched(Range range, Access access) {
  const int64_t page = page_bytes();
  const int64_t pages = (range.bytes + page - 1) / page;
  std::vector<unsigned char> resident(static_cast<size_t>(pages), 1);
  if (mincore(const_cast<uint8_t*>(range.first), static_cast<size_t>(range.bytes), resident.data()) != 0)
    throw Error("mincore failed");
  std::vector<Range> found;
  for (int64_t i = 0; i < pages; ++i) {
    const uint8_t* first = range.first + i * page;
    const int64_t bytes = std::min(page, range.bytes - i * page);
    if ((resident[static_cast<size_t>(i)] & 1) == 0) continue;
    if (access == Access::kRead && is_zero(first, bytes)) continue;
    append(found, {first, bytes});
  }
  return found;
}

// What has to be copied of a range that is too large to be copied whole.
std::vector<Range> used_parts(const TensorView& view, const uint8_t* first, int64_t extent, Access access) {
  std::vector<Range> runs;
  casefile::for_each_run(view, [&](const uint8_t* run, int64_t n) {
    const uint8_t* begin = page_of(run);
    runs.push_back({begin, run + n - begin});
  });
  std::sort(runs.begin(), runs.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> merged;
  for (const Range& run : runs) append(merged, run);
  std::vector<Range> parts;
  for (const Range& run : merged) {
    for (Range part : touched(run, access)) {
      const uint8_t* begin = std::max(part.first, first);
      parts.push_back({begin, std::min(part.first + part.bytes, first + extent) - begin});
    }
  }
  return parts;
}

// One tensor: the host's view and its mirror.
class Mirrored {
 public:
  Mirrored(const char* name, Access access, const TensorView& host)
      : name_(name),
        access_(access),
        host_(host),
        place_(footprint(host)),
        memory_(place_.run == 0 ? 0 : place_.extent(), (place_.first % kPhases + kPhases) % kPhases, name) {}

  bool has(const char* name) const { return name_ == name; }
  int64_t device_bytes() const { return memory_.whole_bytes(); }
  TensorView device_view(DeviceId device) const {
    return {memory_.data() + into(), host_.dtype(), host_.shape(), host_.strides(), device};
  }

  void upload(cudaStream_t stream) {
    pieces_.clear();
    if (wide()) {
      check_cuda(cudaMemsetAsync(memory_.whole(), 0, static_cast<size_t>(memory_.whole_bytes()), stream),
                 name_);
      add_piece(0, memory_.before());
      for (const Range& part : used_parts(host_, host_first(), memory_.bytes(), access_))
        add_piece(memory_.before() + (part.first - host_first()), part.bytes);
      add_piece(memory_.before() + memory_.bytes(), memory_.after());
    } else {
      add_piece(0, memory_.whole_bytes());
    }
    for (const Piece& piece : pieces_) {
      check_cuda(cudaMemcpyAsync(memory_.whole() + piece.offset, piece.bytes.data(), piece.bytes.size(),
                                 cudaMemcpyHostToDevice, stream),
                 name_);
    }
  }

  // What was disturbed, or an empty text.
  std::string download(cudaStream_t stream) {
    std::string disturbed;
    std::vector<uint8_t> now;
    for (Piece& piece : pieces_) {
      now.resize(piece.bytes.size());
      uint8_t* from = memory_.whole() + piece.offset;
      check_cuda(cudaMemcpyAsync(now.data(), from, now.size(), cudaMemcpyDeviceToHost, stream), name_);
      check_cuda(cudaStreamSynchronize(stream), name_);
      if (access_ != Access::kRead) take_elements(piece, now);
      if (disturbed.empty()) disturbed = difference(piece, now);
      if (wide()) check_cuda(cudaMemsetAsync(from, 0, now.size(), stream), name_);
    }
    if (disturbed.empty() && wide()) disturbed = rest_that_is_no_zero(stream);
    return disturbed;
  }

 private:
  bool wide() const { return memory_.bytes() > kWideBytes; }
  // Of the range; the view's first element may lie behind it.
  const uint8_t* host_first() const { return host_.data_as<const uint8_t>() - into(); }
  int64_t into() const { return reinterpret_cast<intptr_t>(host_.data()) - place_.first; }

  void add_piece(int64_t offset, int64_t bytes) {
    if (bytes == 0) return;
    Piece piece{offset, std::vector<uint8_t>(static_cast<size_t>(bytes))};
    const auto pattern = access_ == Access::kRead ? input_margin(host_.dtype()) : canary(host_.dtype());
    const int64_t first = memory_.before();
    const int64_t end = first + memory_.bytes();
    for (int64_t i = offset; i < std::min(first, offset + bytes); ++i)
      piece.bytes[static_cast<size_t>(i - offset)] = pattern[static_cast<size_t>((i - first) & 3)];
    for (int64_t i = std::max(end, offset); i < offset + bytes; ++i)
      piece.bytes[static_cast<size_t>(i - offset)] = pattern[static_cast<size_t>((i - first) & 3)];
    const int64_t from = std::max(first, offset);
    const int64_t to = std::min(end, offset + bytes);
    if (from < to)
      std::copy_n(host_first() + (from - first), to - from, piece.bytes.begin() + (from - offset));
    pieces_.push_back(std::move(piece));
  }

  void take_elements(Piece& piece, const std::vector<uint8_t>& now) const {
    const auto piece_bytes = static_cast<int64_t>(piece.bytes.size());
    casefile::for_each_run(host_, [&](uint8_t* run, int64_t n) {
      const int64_t at = run - host_first() + memory_.before() - piece.offset;  // of the run, in the piece
      const int64_t from = std::max<int64_t>(at, 0);
      const int64_t to = std::min(at + n, piece_bytes);
      if (from >= to) return;
      std::copy(now.begin() + from, now.begin() + to, run + (from - at));
      std::copy(now.begin() + from, now.begin() + to, piece.bytes.begin() + from);
    });
  }

  std::string difference(const Piece& piece, const std::vector<uint8_t>& now) const {
    const auto [was, is] = std::mismatch(piece.bytes.begin(), piece.bytes.end(), now.begin());
    if (was == piece.bytes.end()) return "";
    return fmt::format("{}: byte {} of {} was 0x{:02x} and is 0x{:02x}", name_,
                       was - piece.bytes.begin() + piece.offset - memory_.before(), memory_.bytes(),
                       unsigned{*was}, unsigned{*is});
  }

  // The pieces have been made zeros too.
  std::string rest_that_is_no_zero(cudaStream_t stream) const {
    const DeviceMemory count(sizeof(unsigned long long), 0, name_);
    unsigned long long words = 0;
    check_cuda(cudaMemsetAsync(count.data(), 0, sizeof words, stream), name_);
    check_cuda(count_nonzero(memory_.whole(), memory_.whole_bytes() / 16 * 16,
                             reinterpret_cast<unsigned long long*>(count.data()), stream),
               name_);
    check_cuda(cudaMemcpyAsync(&words, count.data(), sizeof words, cudaMemcpyDeviceToHost, stream), name_);
    check_cuda(cudaStreamSynchronize(stream), name_);
    if (words == 0) return "";
    return fmt::format("{}: {} words of 16 bytes between its elements were written", name_, words);
  }

  static std::array<uint8_t, 4> input_margin(DType type) {
    // Where integers are: indices that could be meant.
    const uint8_t byte = type == DType::kInt32 || type == DType::kInt64 ? 0 : 0xFF;
    return {byte, byte, byte, byte};
  }

  std::string name_;
  Access access_;
  TensorView host_;
  Footprint place_;
  DeviceMemory memory_;
  std::vector<Piece> pieces_;
};

struct Collect {
  std::vector<Mirrored>& tensors;

  void tensor(const char* name, const TensorView& view, Access access) const {
    if (view) tensors.emplace_back(name, access, view);
  }
  template <class T>
  void option(const char*, const T&) const {}
};

struct Replace {
  const std::vector<Mirrored>& tensors;
  DeviceId device;

  void tensor(const char* name, TensorView& view, Access) const {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const Mirrored& t) { return t.has(name); });
    if (found != tensors.end()) view = found->device_view(device);
  }
  template <class T>
  void option(const char*, const T&) const {}
};

// Bytes that the mirrors of all tensors will take.
struct Size {
  int64_t& bytes;

  void tensor(const char*, const TensorView& view, Access) const {
    const Footprint place = footprint(view);
    if (place.run > 0) bytes += place.extent();
  }
  template <class T>
  void option(const char*, const T&) const {}
};

int64_t mirrored_bytes(CaseArgs args) {
  int64_t bytes = 0;
  std::visit([&](auto& a) { casefile::each_field(a, Size{bytes}); }, args);
  return bytes;
}

}  // namespace

struct GpuMirror::State {
  State(const CaseArgs& host, const Device& device, size_t workspace_bytes)
      : device_id(device.id), guard(device.id.index), args(host) {
    if (mirrored_bytes(host) > kAloneBytes) turn = std::make_unique<Turn>();
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    try {
      std::visit([&](auto& a) { casefile::each_field(a, Collect{tensors}); }, args);
      std::visit([&](auto& a) { casefile::each_field(a, Replace{tensors, device_id}); }, args);
      workspace = std::make_unique<DeviceMemory>(static_cast<int64_t>(workspace_bytes), 0, "the workspace");
    } catch (...) {
      static_cast<void>(cudaStreamDestroy(stream));
      throw;
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { static_cast<void>(cudaStreamDestroy(stream)); }

  // Of the workspace, whose margins alone have to stay as they are.
  std::vector<Piece> workspace_margins() const {
    const auto margin = [&](int64_t offset, int64_t bytes) {
      return Piece{offset, std::vector<uint8_t>(static_cast<size_t>(bytes), kWorkspaceCanary)};
    };
    return {margin(0, workspace->before()),
            margin(workspace->before() + workspace->bytes(), workspace->after())};
  }

  DeviceId device_id;
  cuda::DeviceGuard guard;
  std::unique_ptr<Turn> turn;
  CaseArgs args;
  cudaStream_t stream = nullptr;
  std::vector<Mirrored> tensors;
  std::unique_ptr<DeviceMemory> workspace;
};

GpuMirror::GpuMirror(const CaseArgs& host, const Device& device, size_t workspace_bytes)
    : state_(std::make_unique<State>(host, device, workspace_bytes)) {}
GpuMirror::~GpuMirror() = default;

const CaseArgs& GpuMirror::args() const { return state_->args; }

Workspace GpuMirror::workspace() const {
  return {state_->workspace->data(), static_cast<size_t>(state_->workspace->bytes())};
}

Stream GpuMirror::stream() const { return {state_->stream}; }

void GpuMirror::upload() {
  State& s = *state_;
  const std::vector<Piece> margins = s.workspace_margins();
  for (Mirrored& tensor : s.tensors) tensor.upload(s.stream);
  if (!bare()) {
    check_cuda(
        cudaMemsetAsync(s.workspace->data(), 0xFF, static_cast<size_t>(s.workspace->bytes()), s.stream),
        "the workspace");
    for (const Piece& margin : margins) {
      check_cuda(cudaMemcpyAsync(s.workspace->whole() + margin.offset, margin.bytes.data(),
                                 margin.bytes.size(), cudaMemcpyHostToDevice, s.stream),
                 "the workspace");
    }
  }
  check_cuda(cudaStreamSynchronize(s.stream), "the tensors' copies");
}

void GpuMirror::run(const Plan& plan) {
  std::visit(
      [&]<class T>(const T& a) {
        if constexpr (requires { tilewise::run(plan, a, workspace(), stream()); }) {
          tilewise::run(plan, a, workspace(), stream());
        } else {
          throw Error("a weight permutation has no plan");
        }
      },
      state_->args);
}

void GpuMirror::run() {
  std::visit(
      [&]<class T>(const T& a) {
        if constexpr (std::is_same_v<T, PermuteQBProjArgs>) {
          permute_q_b_proj(a, stream());
        } else if constexpr (std::is_same_v<T, PermuteWvProjArgs>) {
          permute_wv_proj(a, stream());
        } else {
          throw Error("all operators but the weight permutations need a plan");
        }
      },
      state_->args);
}

void GpuMirror::wait() { check_cuda(cudaStreamSynchronize(state_->stream), "the call"); }

std::string GpuMirror::download() {
  State& s = *state_;
  wait();
  std::string disturbed;
  for (Mirrored& tensor : s.tensors) {
    const std::string found = tensor.download(s.stream);
    if (disturbed.empty()) disturbed = found;
  }
  for (const Piece& margin : s.workspace_margins()) {
    if (margin.bytes.empty()) continue;
    std::vector<uint8_t> now(margin.bytes.size());
    check_cuda(cudaMemcpyAsync(now.data(), s.workspace->whole() + margin.offset, now.size(),
                               cudaMemcpyDeviceToHost, s.stream),
               "the workspace");
    check_cuda(cudaStreamSynchronize(s.stream), "the workspace");
    if (disturbed.empty() && now != margin.bytes) disturbed = "the workspace: bytes beside it were written";
  }
  return disturbed;
}

void run_on_gpu(const Plan& plan, const Args& args) {
  const PlanState& state = plan.state();
  GpuMirror mirror(args, state.device, state.workspace_bytes);
  mirror.upload();
  mirror.run(plan);
  const std::string disturbed = mirror.download();
  if (!disturbed.empty())
    throw Error(
        fmt::format("{} by {} on {}: {}", plan.op(), plan.kernel(), to_string(state.device.id), disturbed));
}

}  // namespace tilewise::cases
