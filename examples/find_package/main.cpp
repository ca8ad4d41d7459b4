// A first call: sparse attention of two tokens over three cached ones, checked against values done by hand.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewise/tilewise.h"

namespace {

constexpr int64_t kTokens = 2, kCached = 3, kDim = 512, kTopk = 2;

// Enough for values that bfloat16 holds exactly, as here.
uint16_t to_bf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }
float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

bool near(const char* what, float got, double expected) {
  const bool ok = std::abs(got - expected) <= 0.02;
  std::printf("%s: %.4f, expected %.4f%s\n", what, got, expected, ok ? "" : "  <- wrong");
  return ok;
}

}  // namespace

int main() try {
  // Row r of the cache is r+1 everywhere and q is 1 everywhere, so with this scale the score of row r is r+1.
  std::vector<uint16_t> q(kTokens * kDim, to_bf16(1.0f));
  std::vector<uint16_t> kv;
  for (int64_t row = 0; row < kCached; ++row) {
    kv.insert(kv.end(), kDim, to_bf16(static_cast<float>(row + 1)));
  }
  // Token 0 attends to row 1 alone (-1 is skipped), token 1 to the rows 0 and 2.
  const std::vector<int32_t> indices = {1, -1, 0, 2};
  std::vector<uint16_t> out(kTokens * kDim);
  std::vector<float> lse(kTokens);

  tilewise::SparsePrefillFwdArgs args;
  args.q = {q.data(), tilewise::DType::kBF16, {kTokens, 1, kDim}};
  args.kv = {kv.data(), tilewise::DType::kBF16, {kCached, 1, kDim}};
  args.indices = {indices.data(), tilewise::DType::kInt32, {kTokens, 1, kTopk}};
  args.softmax_scale = 1.0f / kDim;
  args.out = {out.data(), tilewise::DType::kBF16, {kTokens, 1, kDim}};
  args.lse = {lse.data(), tilewise::DType::kFP32, {kTokens, 1}};
  tilewise::sparse_prefill_fwd(args);

  const double weight_of_1 = std::exp(1.0), weight_of_3 = std::exp(3.0);
  bool ok = near("lse of token 0", lse[0], 2.0);
  ok &= near("lse of token 1", lse[1], std::log(weight_of_1 + weight_of_3));
  ok &= near("output of token 0", from_bf16(out[0]), 2.0);
  ok &= near("output of token 1", from_bf16(out.back()),
             (1.0 * weight_of_1 + 3.0 * weight_of_3) / (weight_of_1 + weight_of_3));
  return ok ? 0 : 1;
} catch (const tilewise::InvalidArgument& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
