// Whether this process may use AMX's tile registers.
#pragma once

namespace tilewise {

/// Asks the processor and, once a process, the operating system.
bool amx_is_usable();

}  // namespace tilewise
