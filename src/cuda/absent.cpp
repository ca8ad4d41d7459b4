// What a build without CUDA has in the place of the GPU backend.
#include <fmt/format.h>

#include "cuda/kernels.h"
#include "tilewise/device.h"
#include "tilewise/error.h"

namespace tilewise {

Device Device::cuda(int32_t index) {
  throw Error(fmt::format("cuda:{}: this build of tilewise has no CUDA kernels", index));
}

namespace cuda {

const bool kBuilt = false;

KernelTable<Forward> forward_kernels() { return {}; }
KernelTable<Combine> combine_kernels() { return {}; }
KernelTable<KvMoveFamily> kv_move_kernels() { return {}; }

void make_decode_plan(const ForwardProblem& problem, const Device&, int32_t*, Stream) {
  throw Error(problem.shape.op + ": this build of tilewise has no CUDA kernels");
}
void permute_q_b_proj(const PermuteQBProjArgs&, Stream) {}
void permute_wv_proj(const PermuteWvProjArgs&, Stream) {}

}  // namespace cuda
}  // namespace tilewise
