// Plan and run of quantize_kv, dequantize_kv and append_kv.
#include "ops/entry.h"

namespace tilewise {

Plan plan(const QuantizeKvArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(kv_move_kernels(), args, device, options);
}
void run(const Plan& plan, const QuantizeKvArgs& args, Workspace workspace, Stream stream) {
  run_call<KvMoveFamily>(plan, args, workspace, stream);
}
void quantize_kv(const QuantizeKvArgs& args, const PlanOptions& options) {
  call_once(kv_move_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const QuantizeKvArgs& args, const Device& device) {
  return explain_call(kv_move_kernels(), args, device);
}

Plan plan(const DequantizeKvArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(kv_move_kernels(), args, device, options);
}
void run(const Plan& plan, const DequantizeKvArgs& args, Workspace workspace, Stream stream) {
  run_call<KvMoveFamily>(plan, args, workspace, stream);
}
void dequantize_kv(const DequantizeKvArgs& args, const PlanOptions& options) {
  call_once(kv_move_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const DequantizeKvArgs& args, const Device& device) {
  return explain_call(kv_move_kernels(), args, device);
}

Plan plan(const AppendKvArgs& args, const Device& device, const PlanOptions& options) {
  return plan_call(kv_move_kernels(), args, device, options);
}
void run(const Plan& plan, const AppendKvArgs& args, Workspace workspace, Stream stream) {
  run_call<KvMoveFamily>(plan, args, workspace, stream);
}
void append_kv(const AppendKvArgs& args, const PlanOptions& options) {
  call_once(kv_move_kernels(), args, options);
}
std::vector<KernelVerdict> explain(const AppendKvArgs& args, const Device& device) {
  return explain_call(kv_move_kernels(), args, device);
}

}  // namespace tilewise
