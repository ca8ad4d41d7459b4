#include "core/amx_permission.h"

#include <cstdint>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tilewise {
namespace {

#if defined(__x86_64__) && defined(__linux__)

bool has_amx_and_avx512() {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr uint32_t kAmxBf16 = 1u << 22;
  constexpr uint32_t kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  constexpr uint32_t kAvx512Bf16 = 1u << 5;
  return (a & kAvx512Bf16) != 0;
}

bool ask_for_tile_registers() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

bool has_amx_and_avx512() { return false; }
bool ask_for_tile_registers() { return false; }

#endif

}  // namespace

bool amx_is_usable() {
  static const bool usable = has_amx_and_avx512() && ask_for_tile_registers();
  return usable;
}

}  // namespace tilewise
