// Plan and run of dense_decode.
#include "cuda/kernels.h"
#include "ops/decode_plan.h"
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
int64_t decode_plan_size(const DenseDecodeArgs& args) { return decode_plan_size(plan_shape(args)); }
void fill_decode_plan(const DenseDecodeArgs& args, const Device& device, Stream stream) {
  cuda::make_decode_plan(check_planning(args, device.id), device, args.plan.data_as<int32_t>(), stream);
}
std::vector<KernelVerdict> explain(const DenseDecodeArgs& args, const Device& device) {
  return explain_call(forward_kernels(), args, device);
}

}  // namespace tilewise
