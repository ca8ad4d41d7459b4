#include "cpu/isa.h"

#include <vector>

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
  }
  return nullptr;
}

std::vector<Isa> make_isas() {
  std::vector<Isa> all;
  const auto add = [&](const char* kernel, CpuFeature feature) {
    const TileOps* tile = table_of(simd_tile_ops(), feature);
    if (tile == nullptr) return;
    all.push_back({kernel, feature, tile, table_of(softmax_ops(), feature), table_of(decode_ops(), feature),
                   table_of(encode_ops(), feature), table_of(row_ops(), feature)});
  };
  add("cpu_avx512", kCpuAvx512);
  add("cpu_avx2", kCpuAvx2);
  add("cpu_sse4", kCpuSse4);
  add("cpu_baseline", kCpuBaseline);
  return all;
}

const char* feature_text(CpuFeature feature) {
  switch (feature) {
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

std::optional<std::string> isa_refusal(const Isa& isa, const Device& device) {
  if (device.id.type != DeviceType::kCpu) return "runs on the CPU, not on " + to_string(device.id);
  if ((device.cpu_features & isa.feature) == 0) return std::string("needs ") + feature_text(isa.feature);
  return std::nullopt;
}

}  // namespace tilewise::cpu
