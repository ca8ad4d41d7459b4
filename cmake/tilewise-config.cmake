# Package file for find_package(tilewise): the target tilewise::tilewise and the libraries it is linked with.
# The headers tilewise/c_api.h and tilewise/dlpack.h include DLPack's header and nothing else does, so that it may be
# missing; who uses one of them asks for the component c_api.
include(CMakeFindDependencyMacro)
find_dependency(OpenMP COMPONENTS CXX)
include("${CMAKE_CURRENT_LIST_DIR}/highway.cmake")
if(NOT TARGET hwy::hwy)
  set(tilewise_FOUND FALSE)
  set(tilewise_NOT_FOUND_MESSAGE "tilewise needs Highway (libhwy-dev), which was not found")
  return()
endif()
find_path(TILEWISE_DLPACK_INCLUDE_DIR dlpack/dlpack.h)
if(TILEWISE_DLPACK_INCLUDE_DIR)
  set(tilewise_c_api_FOUND TRUE)
elseif(tilewise_FIND_REQUIRED_c_api)
  set(tilewise_FOUND FALSE)
  set(tilewise_NOT_FOUND_MESSAGE
      "tilewise/c_api.h needs dlpack/dlpack.h (libdlpack-dev), which was not found; TILEWISE_DLPACK_INCLUDE_DIR may name the folder that holds it"
  )
  return()
endif()
include("${CMAKE_CURRENT_LIST_DIR}/tilewise_targets.cmake")
if(TILEWISE_DLPACK_INCLUDE_DIR)
  target_include_directories(tilewise::tilewise INTERFACE "${TILEWISE_DLPACK_INCLUDE_DIR}")
endif()
