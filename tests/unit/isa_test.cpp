// Instruction sets: each says what a processor lacks for it.
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tilewise::cpu {
namespace {

TEST(Isa, RefusalsNameWhatIsMissing) {
  const std::map<std::string, std::string> expected = {
      {"cpu_amx", "needs AMX-BF16 with AVX-512 BF16, and the operating system's permission"},
      {"cpu_avx512_bf16", "needs AVX-512 BF16"},
      {"cpu_avx512", "needs AVX-512 (F, BW, CD, DQ, VL)"},
      {"cpu_avx2", "needs AVX2 and FMA"},
      {"cpu_sse4", "needs SSE4"},
      {"cpu_baseline", ""}};
  for (const Isa& isa : tile_isas()) {
    EXPECT_EQ(isa_refusal(isa, Device{}).value_or(""), expected.at(isa.kernel)) << isa.kernel;
    Device able;
    able.cpu_features = isa.features;
    EXPECT_EQ(isa_refusal(isa, able), std::nullopt) << isa.kernel;
  }
}

TEST(Isa, Bf16ProductsNeedTheRestOfAvx512) {
  Device odd;
  odd.cpu_features |= kCpuAvx512Bf16;
  for (const Isa& isa : tile_isas()) {
    if (isa.kernel != "cpu_avx512_bf16") continue;
    EXPECT_EQ(isa_refusal(isa, odd), "needs AVX-512 (F, BW, CD, DQ, VL)");
  }
}

}  // namespace
}  // namespace tilewise::cpu
