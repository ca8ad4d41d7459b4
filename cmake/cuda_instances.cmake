# Writes one small translation unit for each instance of the portable forward kernel and gives their list in
# `portable_instances`. The configurations are the rows of kForwardConfigs.
set(portable_instances)
set(folder "${PROJECT_BINARY_DIR}/portable_instances")
foreach(config RANGE 4)
  foreach(dim IN ITEMS 512 576)
    foreach(kind IN ITEMS bf16 fp16 raw)
      set(element __nv_bfloat16)
      set(raw false)
      if(kind STREQUAL "fp16")
        set(element __half)
      elseif(kind STREQUAL "raw")
        set(raw true)
      endif()
      if(raw AND config EQUAL 3)
        continue() # as configuration 2: records have one stage anyway
      endif()
      set(file "${folder}/forward_${kind}_${dim}_config_${config}.cu")
      file(
        CONFIGURE OUTPUT "${file}"
        CONTENT
          [[
#include "cuda/portable/forward.cuh"
#include "cuda/portable/instances.h"

namespace tilewise::cuda {
template <>
const void* forward_instance<@element@, @dim@, @config@, @raw@>() {
  return reinterpret_cast<const void*>(&forward_kernel<@element@, @dim@, @config@, @raw@>);
}
}  // namespace tilewise::cuda
]]
        @ONLY
      )
      list(APPEND portable_instances "${file}")
    endforeach()
  endforeach()
endforeach()
