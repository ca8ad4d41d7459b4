# The installed package: library, public headers and what find_package(tilewise) reads.
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/tilewise")
install(TARGETS tilewise EXPORT tilewise_targets)
install(DIRECTORY include/tilewise TYPE INCLUDE)
install(EXPORT tilewise_targets NAMESPACE tilewise:: DESTINATION "${package_dir}")
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/tilewise-config-version.cmake" COMPATIBILITY SameMinorVersion
)
# A static library is linked with CUDA's runtime by whoever uses it.
set(TILEWISE_NEEDS_CUDA OFF)
if(TILEWISE_CUDA AND NOT BUILD_SHARED_LIBS)
  set(TILEWISE_NEEDS_CUDA ON)
endif()
configure_file(cmake/tilewise-config.cmake.in "${PROJECT_BINARY_DIR}/tilewise-config.cmake" @ONLY)
install(
  FILES "${PROJECT_BINARY_DIR}/tilewise-config.cmake" cmake/highway.cmake
        "${PROJECT_BINARY_DIR}/tilewise-config-version.cmake"
  DESTINATION "${package_dir}"
)
