# The GPU kernels: machine code for compute capabilities 8.0 and 9.0, and PTX of the latter for what comes after.
find_program(TILEWISE_NVCC nvcc PATHS /usr/local/cuda/bin)
if(TILEWISE_NVCC AND NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${TILEWISE_NVCC}")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake 3.25 does not know yet that nvcc speaks C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)

file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.cpp)
list(REMOVE_ITEM cuda_sources "${PROJECT_SOURCE_DIR}/src/cuda/absent.cpp")
include(cmake/cuda_instances.cmake)
target_sources(tilewise PRIVATE ${cuda_sources} ${portable_instances})
# The target was made before the language was enabled.
set_target_properties(tilewise PROPERTIES CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}" CUDA_STANDARD 20)
# CUDA's runtime is linked statically: the library loads on machines that have no CUDA.
target_link_libraries(tilewise PRIVATE CUDA::cudart_static)
target_compile_options(
  tilewise PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-ffp-contract=off>"
)

if(TILEWISE_DEVELOPER)
  add_library(tilewise_device_headers OBJECT tests/unit/device_headers.cu)
  target_include_directories(tilewise_device_headers PRIVATE src include)
  target_compile_options(tilewise_device_headers PRIVATE -Werror=all-warnings -Xcompiler=-Wall,-Wextra)
endif()
