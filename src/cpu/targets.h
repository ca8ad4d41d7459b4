// Which instruction sets the CPU kernels are built for, and how a file that Highway compiles once per set
// hands its function tables over. Include before any <hwy/...> header.
#pragma once

// SSSE3, the refinements of AVX-512 and scalable vectors add build time and nothing that these kernels use.
// The two bare numbers are HWY_AVX3_ZEN4 and HWY_AVX3_SPR, which older releases of Highway do not name.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | (1LL << 6) | (1LL << 4) | HWY_SVE | HWY_SVE2)

#include <hwy/base.h>
#include <hwy/detect_targets.h>

namespace tilewise::cpu {

/// One function table per instruction set; null where this build has none.
template <class Ops>
struct TargetTables {
  const Ops* avx512 = nullptr;
  const Ops* avx2 = nullptr;
  const Ops* sse4 = nullptr;
  const Ops* baseline = nullptr;
};

}  // namespace tilewise::cpu

// The tables of the variable `name` that the file defines in HWY_NAMESPACE; stands in the HWY_ONCE part,
// where the current namespace is the baseline's.
#if HWY_TARGETS & HWY_AVX3
#define TW_TABLE_AVX512(name) &N_AVX3::name
#else
#define TW_TABLE_AVX512(name) nullptr
#endif
#if HWY_TARGETS & HWY_AVX2
#define TW_TABLE_AVX2(name) &N_AVX2::name
#else
#define TW_TABLE_AVX2(name) nullptr
#endif
#if HWY_TARGETS & HWY_SSE4
#define TW_TABLE_SSE4(name) &N_SSE4::name
#else
#define TW_TABLE_SSE4(name) nullptr
#endif
#define TW_TARGET_TABLES(name) \
  {TW_TABLE_AVX512(name), TW_TABLE_AVX2(name), TW_TABLE_SSE4(name), &HWY_NAMESPACE::name}
