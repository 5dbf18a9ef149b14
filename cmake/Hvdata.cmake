# SPDX-License-Identifier: Apache-2.0
# What all our targets share.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
# -O2 as TensorFlow is built: -O3 buys nothing in code that moves messages.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g -DNDEBUG")
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(HVDATA_CCACHE ccache)
mark_as_advanced(HVDATA_CCACHE)
if(HVDATA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${HVDATA_CCACHE})
endif()

find_package(Threads REQUIRED)

# The hash of fingerprints; only its header is needed.
find_path(HVDATA_XXHASH xxhash.h)
if(NOT HVDATA_XXHASH)
  message(FATAL_ERROR "horovod_data: xxhash.h was not found; the fingerprints of verified batches need it.\n"
    "  What to do: `apt-get install libxxhash-dev` (Debian, Ubuntu), `conda install xxhash`, or -DHVDATA_XXHASH=<its folder>.")
endif()

# Instructions that not every processor of the kind has: such a file's functions are called where the processor has them.
set(HVDATA_AVX2 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(HVDATA_AVX2 ON)
endif()

# hvdata_sources(VARIABLE LAYER...): every .cc file of the layers, looked for anew at each build.
function(hvdata_sources variable)
  set(all)
  foreach(layer IN LISTS ARGN)
    file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/${layer}/*.cc)
    list(APPEND all ${found})
  endforeach()
  if(NOT all)
    message(FATAL_ERROR "horovod_data: no .cc file in csrc/{${ARGN}}: is the checkout or the sdist complete?")
  endif()
  if(HVDATA_AVX2)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/csrc/proof/fingerprint_avx2.cc PROPERTIES COMPILE_OPTIONS -mavx2)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/csrc/proof/fingerprint.cc PROPERTIES COMPILE_DEFINITIONS HVDATA_AVX2)
  endif()
  set(${variable} ${all} PARENT_SCOPE)
endfunction()

# hvdata_target(TARGET): our include directory, warnings, visibility.
function(hvdata_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_include_directories(${target} SYSTEM PRIVATE ${HVDATA_XXHASH})
  target_compile_definitions(${target} PRIVATE HVDATA_VERSION="${HVDATA_VERSION}")
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${HVDATA_WERROR}>:-Werror>)
  target_link_libraries(${target} PRIVATE Threads::Threads)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# hvdata_sanitize(TARGET [SANITIZERS]): by default HVDATA_SANITIZE; errors fatal. A program runs with what stands in the caller's
# `without_spreading` before it.
function(hvdata_sanitize target)
  set(sanitizers ${HVDATA_SANITIZE} ${ARGN})
  if(sanitizers)
    target_compile_options(${target} PRIVATE -g -fno-omit-frame-pointer -fsanitize=${sanitizers}
      -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${sanitizers})
    # What add_test and gtest_discover_tests put before the program.
    set_target_properties(${target} PROPERTIES CROSSCOMPILING_EMULATOR "${without_spreading}")
  endif()
endfunction()

# hvdata_rooms(NAME ROOM...): a static library for test programs. Each room is one compilation unit; make lint holds that a room's
# names allow it. Of the engine, what Python calls is left out.
function(hvdata_rooms name)
  hvdata_sources(sources ${ARGN})
  list(FILTER sources EXCLUDE REGEX "/engine/c_api\\.cc$")
  add_library(${name} STATIC ${sources})
  hvdata_target(${name})
  hvdata_sanitize(${name})
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(room ${folder} NAME)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room})
  endforeach()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
