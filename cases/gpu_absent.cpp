// What a build without CUDA has in the place of the mirrors.
#include "cases/gpu.h"
#include "tilewise/error.h"

namespace tilewise::cases {
namespace {

[[noreturn]] void refuse() { throw Error("this build of tilewise has no CUDA kernels"); }

}  // namespace

struct GpuMirror::State {};

GpuMirror::GpuMirror(const CaseArgs&, const Device&, size_t) { refuse(); }
GpuMirror::~GpuMirror() = default;
const CaseArgs& GpuMirror::args() const { refuse(); }
Workspace GpuMirror::workspace() const { refuse(); }
Stream GpuMirror::stream() const { refuse(); }
void GpuMirror::upload() { refuse(); }
void GpuMirror::run(const Plan&) { refuse(); }
void GpuMirror::run() { refuse(); }
void GpuMirror::wait() { refuse(); }
std::string GpuMirror::download() { refuse(); }

void run_on_gpu(const Plan&, const Args&) { refuse(); }

}  // namespace tilewise::cases
