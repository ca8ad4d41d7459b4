// Two tokens with 16 heads attend to the cached rows that their lists name; -1 names none.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewise/tilewise.h"

int main() {
  const uint16_t one = 0x3F80, two = 0x4000;  // bfloat16
  std::vector<uint16_t> q(2 * 16 * 512, one), kv(100 * 512, two), out(2 * 16 * 512);
  const std::vector<int32_t> indices = {3, 97, 14, -1, 5, 0, 42, 7};

  tilewise::SparsePrefillFwdArgs args;
  args.q = {q.data(), tilewise::DType::kBF16, {2, 16, 512}};
  args.kv = {kv.data(), tilewise::DType::kBF16, {100, 1, 512}};
  args.indices = {indices.data(), tilewise::DType::kInt32, {2, 1, 4}};
  args.softmax_scale = 0.044f;
  args.out = {out.data(), tilewise::DType::kBF16, {2, 16, 512}};
  tilewise::sparse_prefill_fwd(args);

  const bool right = out == std::vector<uint16_t>(out.size(), two);  // every row is 2, so is their mean
  std::puts(right ? "as expected" : "not as expected");
  return right ? 0 : 1;
}
