// Plan and run of sparse_prefill_fwd and sparse_prefill_bwd.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const SparsePrefillFwdArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(forward_kernels(), args, device, options);
}
void run(const Plan& plan, const SparsePrefillFwdArgs& args, Workspace workspace, Stream stream) {
  run_call<Forward>(plan, args, workspace, stream);
}
void sparse_prefill_fwd(const SparsePrefillFwdArgs& args, const PlanOptions& options) {
  call_once(forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const SparsePrefillFwdArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

Plan plan(const SparsePrefillBwdArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(sparse_backward_kernels(), args, device, options);
}
void run(const Plan& plan, const SparsePrefillBwdArgs& args, Workspace workspace, Stream stream) {
  run_call<SparseBackward>(plan, args, workspace, stream);
}
void sparse_prefill_bwd(const SparsePrefillBwdArgs& args, const PlanOptions& options) {
  call_once(sparse_backward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const SparsePrefillBwdArgs& args, const Device& device) {
  return explain_call(sparse_backward_kernels(), args, device);
}

}  // namespace tilewise
