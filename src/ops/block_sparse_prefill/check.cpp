// Checks of block_sparse_prefill.
#include "ops/checks.h"
#include "ops/varlen_check.h"

namespace tilewise {
namespace {

constexpr HeadSizes kSizes[] = {{192, 128}, {128, 128}};

}  // namespace

VarlenForwardProblem check(const BlockSparsePrefillFwdArgs& args, DeviceId device) {
  Checker check("block_sparse_prefill_fwd", device);
  VarlenForwardProblem problem;
  check_varlen(check, args, kSizes, &problem.shape, &problem);
  check_selection(check, args, &problem.shape, &problem);
  check_varlen_outputs(check, args, &problem);
  check.no_overlaps();
  return problem;
}

VarlenBackwardProblem check(const BlockSparsePrefillBwdArgs& args, DeviceId device) {
  Checker check("block_sparse_prefill_bwd", device);
  VarlenBackwardProblem problem;
  check_varlen(check, args, kSizes, &problem.shape, &problem);
  check_selection(check, args, &problem.shape, &problem);
  problem.shape.deterministic = args.deterministic;
  check_varlen_gradients(check, args, args.sink_bias, &problem);
  check.no_overlaps();
  return problem;
}

}  // namespace tilewise
