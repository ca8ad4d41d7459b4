# Installs the library into a fresh prefix, then configures, builds and runs a project that finds it there.
# Needs: BINARY_DIR (the build to install), EXAMPLE_DIR (the project), WORK_DIR, CXX_COMPILER, BUILD_TYPE,
# DLPACK_INCLUDE_DIR (where that header is found).
function(step)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
step("${CMAKE_COMMAND}" --install "${BINARY_DIR}" --prefix "${WORK_DIR}/prefix")
step(
  "${CMAKE_COMMAND}" -S "${EXAMPLE_DIR}" -B "${WORK_DIR}/build" -G Ninja
  "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
  "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}"
)
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
step("${WORK_DIR}/build/first_call")
step("${WORK_DIR}/build/first_call_c")

# Where DLPack's header cannot be found, the C interface is missed by name.
execute_process(
  COMMAND
    "${CMAKE_COMMAND}" -S "${EXAMPLE_DIR}" -B "${WORK_DIR}/build_without_dlpack" -G Ninja
    "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
    "-DCMAKE_IGNORE_PATH=${DLPACK_INCLUDE_DIR}"
  RESULT_VARIABLE status
  ERROR_VARIABLE text
)
string(REGEX REPLACE "[ \n]+" " " text "${text}")
if(status EQUAL 0 OR NOT text MATCHES "tilewise/c_api.h needs dlpack/dlpack.h \\(libdlpack-dev\\), which was not found")
  message(FATAL_ERROR "the missing header was not reported:\n${text}")
endif()
