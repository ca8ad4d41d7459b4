#include "core/cpu_bf16.h"

#include <cstdint>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tilewise {
namespace {

#if defined(__x86_64__) && defined(__linux__)

struct Registers {
  uint32_t a = 0;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
};

/// What the processor says of its extensions; zeros where it knows no such page.
Registers extensions(uint32_t page) {
  Registers r;
  __get_cpuid_count(7, page, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool has_avx512_bf16() { return (extensions(1).a & 1u << 5) != 0; }

bool has_amx() {
  constexpr uint32_t kTileAndBf16 = 1u << 24 | 1u << 22;
  return (extensions(0).d & kTileAndBf16) == kTileAndBf16;
}

bool ask_for_tile_registers() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

bool has_avx512_bf16() { return false; }
bool has_amx() { return false; }
bool ask_for_tile_registers() { return false; }

#endif

}  // namespace

bool avx512_bf16_is_usable() { return has_avx512_bf16(); }

bool amx_is_usable() {
  static const bool usable = has_avx512_bf16() && has_amx() && ask_for_tile_registers();
  return usable;
}

}  // namespace tilewise
