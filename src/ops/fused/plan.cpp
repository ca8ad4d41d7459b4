// Plan and run of fused_prefill, fused_decode and fused_decode_partials.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const FusedPrefillArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(forward_kernels(), args, device, options);
}
void run(const Plan& plan, const FusedPrefillArgs& args, Workspace workspace, Stream stream) {
  run_call<Forward>(plan, args, workspace, stream);
}
void fused_prefill(const FusedPrefillArgs& args, const PlanOptions& options) {
  call_once(forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const FusedPrefillArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

Plan plan(const FusedDecodeArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(forward_kernels(), args, device, options);
}
void run(const Plan& plan, const FusedDecodeArgs& args, Workspace workspace, Stream stream) {
  run_call<Forward>(plan, args, workspace, stream);
}
void fused_decode(const FusedDecodeArgs& args, const PlanOptions& options) {
  call_once(forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const FusedDecodeArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

Plan plan(const FusedDecodePartialsArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(forward_kernels(), args, device, options);
}
void run(const Plan& plan, const FusedDecodePartialsArgs& args, Workspace workspace, Stream stream) {
  run_call<Forward>(plan, args, workspace, stream);
}
void fused_decode_partials(const FusedDecodePartialsArgs& args, const PlanOptions& options) {
  call_once(forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const FusedDecodePartialsArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

}  // namespace tilewise
