# SPDX-License-Identifier: Apache-2.0
# Settings and functions for all our targets.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
# -O2, as TensorFlow is built. -O3 makes code that moves messages no faster.
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

# The hash of fingerprints is a header only.
find_path(HVDATA_XXHASH xxhash.h)
if(NOT HVDATA_XXHASH)
  message(FATAL_ERROR "horovod_data: xxhash.h was not found; the fingerprints of verified batches need it.\n"
    "  What to do: `apt-get install libxxhash-dev` (Debian, Ubuntu), `conda install xxhash`, or -DHVDATA_XXHASH=<its folder>.")
endif()

# AVX2, which not every x86-64 processor has. The functions of such a file are called only if the processor has it.
set(HVDATA_AVX2 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(HVDATA_AVX2 ON)
endif()

# hvdata_sources(VARIABLE ROOM...): every .cc file of the rooms. Each build looks for new files.
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

# hvdata_target(TARGET): sets our include directory, warnings and visibility.
function(hvdata_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_include_directories(${target} SYSTEM PRIVATE ${HVDATA_XXHASH})
  target_compile_definitions(${target} PRIVATE HVDATA_VERSION="${HVDATA_VERSION}")
  target_compile_options(${target} PRIVATE -Wall -Wextra $<$<BOOL:${HVDATA_WERROR}>:-Werror>)
  target_link_libraries(${target} PRIVATE Threads::Threads)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# hvdata_sanitize(TARGET): compiles with the sanitizers of HVDATA_SANITIZE, whose errors are fatal. CTest starts the program with the
# command in `without_spreading`.
function(hvdata_sanitize target)
  if(HVDATA_SANITIZE)
    target_compile_options(${target} PRIVATE -g -fno-omit-frame-pointer -fsanitize=${HVDATA_SANITIZE}
      -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${HVDATA_SANITIZE})
    # add_test puts this before the program.
    set_target_properties(${target} PROPERTIES CROSSCOMPILING_EMULATOR "${without_spreading}")
  endif()
endfunction()

# hvdata_build_mark(): gives both libraries the mark of this build, HVDATA_BUILD. It changes with their sources and with options that
# change the layout of classes.
function(hvdata_build_mark)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/*/*.cc ${PROJECT_SOURCE_DIR}/csrc/*/*.h)
  list(FILTER sources EXCLUDE REGEX "/csrc/(tests|fuzz)/")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources})
  set(all "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_STANDARD} ${CMAKE_BUILD_TYPE} ${CMAKE_CXX_FLAGS} \
${HVDATA_SANITIZE} ${TensorFlow_OPTIONS} ${MPI_C_LIBRARIES}")
  foreach(source IN LISTS sources)
    file(SHA256 ${source} hash)
    string(APPEND all " ${hash}")
  endforeach()
  string(SHA256 hash "${all}")
  string(SUBSTRING ${hash} 0 12 hash)
  foreach(room engine ops)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/csrc/${room}/build.cc PROPERTIES
      COMPILE_DEFINITIONS "HVDATA_BUILD=\"${HVDATA_VERSION}-${hash}\"")
  endforeach()
endfunction()

# hvdata_library(TARGET RPATH): one of the package's two libraries. Both share classes, so both have the same options.
function(hvdata_library target rpath)
  hvdata_target(${target})
  hvdata_sanitize(${target})
  # In every build type, because TensorFlow is built with NDEBUG and some of its classes have other members without it.
  target_compile_definitions(${target} PRIVATE NDEBUG $<$<BOOL:${HVDATA_SANITIZE}>:HVDATA_CHECK_LOCKS>)
  target_compile_options(${target} PRIVATE ${TensorFlow_OPTIONS})  # such as the ABI of the C++ library
  target_link_libraries(${target} PRIVATE hvdata_mpi)
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(${target} PRIVATE LINKER:--no-undefined LINKER:-Bsymbolic-functions LINKER:--version-script,${exports})
  set_target_properties(${target} PROPERTIES PREFIX "" SUFFIX ".so" LINK_DEPENDS ${exports}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${rpath}")
endfunction()

# hvdata_rooms(NAME ROOM...): a static library for test programs, without what Python calls (engine/{c_api,build}.cc). Each room is one
# compilation unit. `make lint` reads a room as one file, too, so names of a room can't clash.
function(hvdata_rooms name)
  hvdata_sources(sources ${ARGN})
  list(FILTER sources EXCLUDE REGEX "/engine/(c_api|build)\\.cc$")
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
