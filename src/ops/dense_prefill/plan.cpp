// Plan and run of dense_prefill.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const DensePrefillFwdArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(varlen_forward_kernels(), args, device, options);
}
void run(const Plan& plan, const DensePrefillFwdArgs& args, Workspace workspace, Stream stream) {
  run_call<VarlenForward>(plan, args, workspace, stream);
}
void dense_prefill_fwd(const DensePrefillFwdArgs& args, const PlanOptions& options) {
  call_once(varlen_forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const DensePrefillFwdArgs& args, const Device& device) {
  return explain_call(varlen_forward_kernels(), args, device);
}

Plan plan(const DensePrefillBwdArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(varlen_backward_kernels(), args, device, options);
}
void run(const Plan& plan, const DensePrefillBwdArgs& args, Workspace workspace, Stream stream) {
  run_call<VarlenBackward>(plan, args, workspace, stream);
}
void dense_prefill_bwd(const DensePrefillBwdArgs& args, const PlanOptions& options) {
  call_once(varlen_backward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const DensePrefillBwdArgs& args, const Device& device) {
  return explain_call(varlen_backward_kernels(), args, device);
}

}  // namespace tilewise
