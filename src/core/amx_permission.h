// Whether this process may use AMX's tile registers.
#pragma once

namespace tilewise {

/// Where the environment's TILEWISE_AMX is 1, asks the processor and, once a process, the operating system.
bool amx_is_usable();

}  // namespace tilewise
