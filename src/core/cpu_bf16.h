// Which instructions for bf16 products this process may use.
#pragma once

namespace tilewise {

/// AVX-512's. The other extensions of AVX-512 are Highway's to find.
bool avx512_bf16_is_usable();

/// AMX's, with AVX-512's. Asks the processor and, once a process, the operating system.
bool amx_is_usable();

}  // namespace tilewise
