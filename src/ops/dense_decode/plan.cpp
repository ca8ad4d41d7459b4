// Plan and run of dense_decode.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const DenseDecodeArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(forward_kernels(), args, device, options);
}
void run(const Plan& plan, const DenseDecodeArgs& args, Workspace workspace, Stream stream) {
  run_call<Forward>(plan, args, workspace, stream);
}
void dense_decode(const DenseDecodeArgs& args, const PlanOptions& options) {
  call_once(forward_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const DenseDecodeArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

}  // namespace tilewise
