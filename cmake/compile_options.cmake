# Warnings and code generation for our own C++ code. There is no -m flag anywhere: an inline function
# compiled with one could end up in the baseline program. Highway picks the instruction set at run time.
set(cxx_options
    -Wall
    -Wextra
    -Wpedantic
    -Wshadow
    -Wnon-virtual-dtor
    -Woverloaded-virtual
    # Products and sums are fused where the code says so (MulAdd), never by the compiler's choice: the
    # targets that Highway builds from one source must round alike.
    -ffp-contract=off
)
if(TILEWISE_WERROR)
  list(APPEND cxx_options -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports every `"text" + std::string` (its bug 105651).
  list(APPEND cxx_options -Wno-restrict)
  # These come from the optimiser and change from one compiler release to the next: shown, but not fatal.
  list(APPEND cxx_options -Wno-error=array-bounds -Wno-error=maybe-uninitialized
       -Wno-error=stringop-overflow -Wno-error=stringop-overread)
endif()
target_compile_options(tilewise_internal INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>")

if(TILEWISE_SANITIZE)
  # For every target: containers that some objects instrument and others do not report false overflows.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()
