// The instruction sets that CPU kernels come in: one row each, with all functions that depend on it.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/kernel_table.h"
#include "cpu/elementwise/decode.h"
#include "cpu/elementwise/encode.h"
#include "cpu/elementwise/gradient.h"
#include "cpu/elementwise/rows.h"
#include "cpu/elementwise/softmax.h"
#include "cpu/tile/tile.h"
#include "tilewise/device.h"

namespace tilewise::cpu {

struct Isa {
  std::string kernel;  // "cpu_avx2": the name in every kernel table
  uint32_t features;   // bits of CpuFeature, all of them needed
  const TileOps* tile;
  const SoftmaxOps* softmax;
  const DecodeOps* decode;
  const EncodeOps* encode;
  const RowOps* rows;
  const GradientOps* gradient;
};

/// Those that this build has, best first: all that have elementwise code of their own, and all that have tile
/// products of their own.
std::span<const Isa> isas();
std::span<const Isa> tile_isas();

/// Why a kernel of this instruction set cannot run on the device; nothing when it can.
std::optional<std::string> isa_refusal(const Isa& isa, const Device& device);

/// As many threads as there are pieces of work, at least 1: threads without work cost time and memory all the
/// same.
inline int useful_threads(int threads, int64_t pieces) {
  return static_cast<int>(std::clamp<int64_t>(pieces, 1, threads));
}

/// The kernel table of a family whose kernels K are made from an instruction set each. Called once a family.
template <class F, class K>
KernelTable<F> table_of_isas(std::span<const Isa> isas) {
  static const std::vector<K> kernels(isas.begin(), isas.end());
  static const std::vector<const Kernel<F>*> table = [] {
    std::vector<const Kernel<F>*> rows;
    for (const K& kernel : kernels) rows.push_back(&kernel);
    return rows;
  }();
  return table;
}

}  // namespace tilewise::cpu
