// Checks of combine_partials and combine_partials_fused.
#include <fmt/format.h>

#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {
namespace {

constexpr int64_t kValueUnit = 8;

void check_common(Checker& check, const CombineCommon& args, Dim d_v, CombineProblem* problem) {
  CombineShape& shape = problem->shape;
  shape.op = check.op();
  const TensorView& partials = args.out_partials;
  check.input("out_partials", partials, {DType::kFP32, DType::kBF16, DType::kFP16}, {"n", "s_q", "h_q", d_v});
  check.count("out_partials", "n", partials.size(0));
  check.count("out_partials", "s_q", partials.size(1));
  check_heads(check, "out_partials", partials.size(2));
  shape.num_partials = partials.size(0);
  shape.s_q = partials.size(1);
  shape.h_q = partials.size(2);
  shape.d_v = partials.size(3);
  if (shape.d_v < 1 || shape.d_v % kValueUnit != 0) {
    check.refuse("out_partials", fmt::format("of d_v a multiple of {}", kValueUnit),
                 fmt::format("d_v {}", shape.d_v));
  }
  check.count("out_partials", "d_v", shape.d_v);
  shape.partial_dtype = partials.dtype();
  shape.base2 = args.base2;
  shape.has_sink = args.attn_sink.present();
  check.input("lse_partials", args.lse_partials, {DType::kFP32}, {shape.num_partials, shape.s_q, shape.h_q});
  check_sink(check, args.attn_sink, shape.h_q);

  problem->partials = byte_rows<const uint8_t>(partials, 0, 1, 2);
  problem->partial_lse = rows<const float>(args.lse_partials, 0, 1, 2);
  problem->sink = args.attn_sink.data_as<const float>();
  problem->sink_stride = step(args.attn_sink, 0);
}

void check_lse(Checker& check, const TensorView& lse, CombineProblem* problem) {
  if (lse) check.output("lse", lse, {DType::kFP32}, {problem->shape.s_q, problem->shape.h_q});
  problem->lse = rows<float>(lse, -1, 0, 1);
}

}  // namespace

CombineProblem check(const CombinePartialsArgs& args, DeviceId device) {
  Checker check("combine_partials", device);
  CombineProblem problem;
  CombineShape& shape = problem.shape;
  check_common(check, args, "d_v", &problem);
  check.output("out", args.out, {DType::kBF16, DType::kFP16, DType::kFP32},
               {shape.s_q, shape.h_q, shape.d_v});
  check_lse(check, args.lse, &problem);
  check.no_overlaps();
  shape.out_dtype = args.out.dtype();
  problem.out = byte_rows<uint8_t>(args.out, -1, 0, 1);
  return problem;
}

CombineProblem check(const CombinePartialsFusedArgs& args, DeviceId device) {
  Checker check("combine_partials_fused", device);
  CombineProblem problem;
  CombineShape& shape = problem.shape;
  check_common(check, args, 512, &problem);
  check_n_groups(check, args.n_groups, shape.h_q);
  check.given("out_fp8", args.out_fp8);
  check_fp8_outputs(check, args.out_fp8, args.out_sf, shape.s_q, shape.h_q, args.n_groups, &problem);
  check_lse(check, args.lse, &problem);
  check.no_overlaps();
  shape.fp8 = true;
  shape.out_dtype = DType::kE4M3;
  shape.n_groups = args.n_groups;
  return problem;
}

}  // namespace tilewise
