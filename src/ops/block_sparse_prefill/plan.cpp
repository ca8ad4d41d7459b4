// Plan and run of block_sparse_prefill.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const BlockSparsePrefillFwdArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(varlen_forward_kernels(), args, device, options);
}
void run(const Plan& plan, const BlockSparsePrefillFwdArgs& args, Workspace workspace, Stream stream) {
  run_call<VarlenForward>(plan, args, workspace, stream);
}
void block_sparse_prefill_fwd(const BlockSparsePrefillFwdArgs& args, const PlanOptions& options) {
  call_once(varlen_forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const BlockSparsePrefillFwdArgs& args, const Device& device) {
  return explain_call(varlen_forward_kernels(), args, device);
}

Plan plan(const BlockSparsePrefillBwdArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(varlen_backward_kernels(), args, device, options);
}
void run(const Plan& plan, const BlockSparsePrefillBwdArgs& args, Workspace workspace, Stream stream) {
  run_call<VarlenBackward>(plan, args, workspace, stream);
}
void block_sparse_prefill_bwd(const BlockSparsePrefillBwdArgs& args, const PlanOptions& options) {
  call_once(varlen_backward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const BlockSparsePrefillBwdArgs& args, const Device& device) {
  return explain_call(varlen_backward_kernels(), args, device);
}

}  // namespace tilewise
