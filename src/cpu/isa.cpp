#include "cpu/isa.h"

#include <bit>
#include <vector>

#include "cpu/tile/bf16.h"
#include "cpu/tile/simd.h"

namespace tilewise::cpu {
namespace {

template <class Ops>
const Ops* table_of(const TargetTables<Ops>& tables, CpuFeature feature) {
  switch (feature) {
    case kCpuAvx512:
      return tables.avx512;
    case kCpuAvx2:
      return tables.avx2;
    case kCpuSse4:
      return tables.sse4;
    case kCpuBaseline:
      return tables.baseline;
    case kCpuAvx512Bf16:
    case kCpuAmxBf16:
      break;
  }
  return nullptr;
}

void add_isa(std::vector<Isa>& all, const char* kernel, CpuFeature feature) {
  const TileOps* tile = table_of(simd_tile_ops(), feature);
  if (tile == nullptr) return;
  all.push_back({kernel, feature, tile, table_of(softmax_ops(), feature), table_of(decode_ops(), feature),
                 table_of(encode_ops(), feature), table_of(row_ops(), feature),
                 table_of(gradient_ops(), feature)});
}

std::vector<Isa> make_isas() {
  std::vector<Isa> all;
  add_isa(all, "cpu_avx512", kCpuAvx512);
  add_isa(all, "cpu_avx2", kCpuAvx2);
  add_isa(all, "cpu_sse4", kCpuSse4);
  add_isa(all, "cpu_baseline", kCpuBaseline);
  return all;
}

/// AVX-512 with other tile products.
Isa bf16_isa(const Isa& avx512, const char* kernel, CpuFeature feature, const TileOps* tile) {
  Isa isa = avx512;
  isa.kernel = kernel;
  isa.features |= feature;
  isa.tile = tile;
  isa.softmax = bf16_softmax_ops();
  isa.gradient = bf16_gradient_ops();
  return isa;
}

std::vector<Isa> make_tile_isas() {
  std::vector<Isa> all;
  const Isa& best = isas().front();
  if (amx_tile_ops() != nullptr && best.features == kCpuAvx512) {
    all.push_back(bf16_isa(best, "cpu_amx", kCpuAmxBf16, amx_tile_ops()));
    all.push_back(bf16_isa(best, "cpu_avx512_bf16", kCpuAvx512Bf16, dot_tile_ops()));
  }
  all.insert(all.end(), isas().begin(), isas().end());
  return all;
}

const char* feature_text(CpuFeature feature) {
  switch (feature) {
    case kCpuAmxBf16:
      return "AMX-BF16 with AVX-512 BF16, and the operating system's permission";
    case kCpuAvx512Bf16:
      return "AVX-512 BF16";
    case kCpuAvx512:
      return "AVX-512 (F, BW, CD, DQ, VL)";
    case kCpuAvx2:
      return "AVX2 and FMA";
    case kCpuSse4:
      return "SSE4";
    case kCpuBaseline:
      return "the baseline instruction set";
  }
  return "";
}

}  // namespace

std::span<const Isa> isas() {
  static const std::vector<Isa> all = make_isas();
  return all;
}

std::span<const Isa> tile_isas() {
  static const std::vector<Isa> all = make_tile_isas();
  return all;
}

std::optional<std::string> isa_refusal(const Isa& isa, const Device& device) {
  if (device.id.type != DeviceType::kCpu) return "runs on the CPU, not on " + to_string(device.id);
  const uint32_t missing = isa.features & ~device.cpu_features;
  if (missing == 0) return std::nullopt;
  return std::string("needs ") + feature_text(static_cast<CpuFeature>(std::bit_floor(missing)));
}

}  // namespace tilewise::cpu
