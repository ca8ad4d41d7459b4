// Plan and run of combine_partials and combine_partials_fused.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const CombinePartialsArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(combine_kernels(), args, device, options);
}
void run(const Plan& plan, const CombinePartialsArgs& args, Workspace workspace, Stream stream) {
  run_call<Combine>(plan, args, workspace, stream);
}
void combine_partials(const CombinePartialsArgs& args, const PlanOptions& options) {
  call_once(combine_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const CombinePartialsArgs& args, const Device& device) {
  return explain_call(combine_kernels(), args, device);
}

Plan plan(const CombinePartialsFusedArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(combine_kernels(), args, device, options);
}
void run(const Plan& plan, const CombinePartialsFusedArgs& args, Workspace workspace, Stream stream) {
  run_call<Combine>(plan, args, workspace, stream);
}
void combine_partials_fused(const CombinePartialsFusedArgs& args, const PlanOptions& options) {
  call_once(combine_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const CombinePartialsFusedArgs& args, const Device& device) {
  return explain_call(combine_kernels(), args, device);
}

}  // namespace tilewise
