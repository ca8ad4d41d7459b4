// Reading of case files.
#pragma once

#include <cstdint>
#include <span>

#include "tilewise/case_file.h"

namespace tilewise::casefile {

/// The call in a whole file. Throws BadContents.
LoadedCase read_case(std::span<const uint8_t> file);

}  // namespace tilewise::casefile
