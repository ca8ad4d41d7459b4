/* The same from C: two partial results of one token are merged. */
#include <math.h>
#include <stdio.h>

#include "tilewise/c_api.h"

enum { kPartials = 2, kWidth = 8 };

int main(void) {
  /* The first partial is 1 everywhere, the second 4 with three times the weight: (1 + 3 * 4) / (1 + 3). */
  float partials[kPartials * kWidth], lse_partials[kPartials], out[kWidth], lse[1];
  int64_t partials_shape[] = {kPartials, 1, 1, kWidth}, out_shape[] = {1, 1, kWidth};
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType f32 = {kDLFloat, 32, 1};
  DLTensor partials_tensor = {partials, cpu, 4, f32, partials_shape, NULL, 0};
  DLTensor lse_partials_tensor = {lse_partials, cpu, 3, f32, partials_shape, NULL, 0};
  DLTensor out_tensor = {out, cpu, 3, f32, out_shape, NULL, 0};
  DLTensor lse_tensor = {lse, cpu, 2, f32, out_shape, NULL, 0};
  TilewiseCombinePartialsArgs args = {.size = sizeof(args)};
  int i, right;

  for (i = 0; i < kPartials * kWidth; ++i) partials[i] = i < kWidth ? 1.0f : 4.0f;
  lse_partials[0] = 0.0f;
  lse_partials[1] = logf(3.0f);
  args.out_partials = &partials_tensor;
  args.lse_partials = &lse_partials_tensor;
  args.out = &out_tensor;
  args.lse = &lse_tensor;
  if (tilewise_combine_partials(&args, NULL, 0) != kTilewiseOk) {
    fprintf(stderr, "%s\n", tilewise_last_error());
    return 1;
  }
  right = fabsf(out[0] - 3.25f) < 1e-5f && fabsf(lse[0] - logf(4.0f)) < 1e-5f;
  printf("tilewise %s: output %.4f, lse %.4f%s\n", tilewise_version(), out[0], lse[0],
         right ? "" : "  <- wrong");
  return right ? 0 : 1;
}
