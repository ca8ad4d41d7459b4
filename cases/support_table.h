// The table of the README: which kernels run which operator on which records.
#pragma once

#include <string>

namespace tilewise::cases {

// Markdown, made by asking the kernel tables about a small case of each kind, on a machine that has every
// instruction set (so that the table is the same everywhere).
std::string support_table();

}  // namespace tilewise::cases
