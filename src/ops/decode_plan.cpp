// Plans of both decodes: their sizes, and how they are filled.
#include "ops/decode_plan.h"

#include "core/check.h"
#include "cuda/kernels.h"
#include "ops/checks.h"

namespace tilewise {
namespace {

constexpr const char* name_of(const DenseDecodeArgs&) { return "dense_decode_plan"; }
constexpr const char* name_of(const SparseDecodeArgs&) { return "sparse_decode_plan"; }

template <class Args>
int64_t size_of_plan(const Args& args) {
  Checker check(name_of(args), args.q.device());
  ForwardProblem problem;
  check_shapes(check, args, &problem);
  return decode_plan_size(problem.shape);
}

template <class Args>
void fill_plan(const Args& args, const Device& device, Stream stream) {
  Checker check(name_of(args), device.id);
  ForwardProblem problem;
  check_shapes(check, args, &problem);
  if (device.id.type != DeviceType::kCuda) check.refuse("q", "on a GPU", to_string(device.id));
  check.output("plan", args.plan, {DType::kInt32}, {decode_plan_size(problem.shape)}, Layout::kContiguous);
  check.aligned("plan", args.plan, kPlanAlignment);
  check.no_overlaps();
  cuda::make_decode_plan(problem, device, args.plan.template data_as<int32_t>(), stream);
}

}  // namespace

int64_t decode_plan_size(const DenseDecodeArgs& args) { return size_of_plan(args); }
int64_t decode_plan_size(const SparseDecodeArgs& args) { return size_of_plan(args); }
void fill_decode_plan(const DenseDecodeArgs& args, const Device& device, Stream stream) {
  fill_plan(args, device, stream);
}
void fill_decode_plan(const SparseDecodeArgs& args, const Device& device, Stream stream) {
  fill_plan(args, device, stream);
}

}  // namespace tilewise
