#include "tools/device.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "tools/report.h"

namespace tilewise::tools {

Device device_named(const std::string& name) {
  constexpr std::string_view kNumbered = "cuda:";
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda();
  if (name.starts_with(kNumbered)) {
    int32_t index = -1;
    const char* end = name.data() + name.size();
    const auto [rest, status] = std::from_chars(name.data() + kNumbered.size(), end, index);
    if (status == std::errc() && rest == end && index >= 0) return Device::cuda(index);
  }
  throw UsageError(fmt::format("--device must be cpu, cuda or cuda:<number>, got '{}'", name));
}

}  // namespace tilewise::tools
