// The table of the README: which kernels run which operator on which records.
#pragma once

#include <string>

namespace tilewise::cases {

// The operators that have no plan and no kernel table: one loop of byte moves on any CPU, which goes by the
// name kPlainKernel.
inline constexpr const char* kPlainOperators[] = {"permute_q_b_proj", "permute_wv_proj"};
inline constexpr const char* kPlainKernel = "cpu";

// Markdown, made by asking the kernel tables about a small case of each kind, on a machine that has every
// instruction set (so that the table is the same everywhere).
std::string support_table();

}  // namespace tilewise::cases
