// Plan and run of sparse_decode.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const SparseDecodeArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(forward_kernels(), args, device, options);
}
void run(const Plan& plan, const SparseDecodeArgs& args, Workspace workspace, Stream stream) {
  run_call<Forward>(plan, args, workspace, stream);
}
void sparse_decode(const SparseDecodeArgs& args, const PlanOptions& options) {
  call_once(forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const SparseDecodeArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

}  // namespace tilewise
