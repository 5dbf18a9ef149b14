# SPDX-License-Identifier: Apache-2.0
# Target TensorFlow::TensorFlow: headers, flags and libraries of the TensorFlow that the given Python imports.
# Sets TensorFlow_FOUND, TensorFlow_VERSION and TensorFlow_CXX_STANDARD. Unless it is required, TensorFlow may be missing. An installed
# one that can't be imported is an error. The cache keeps the answers, because the import takes seconds, until another Python is given
# or this Python has another TensorFlow.

find_package(Python 3.9 REQUIRED COMPONENTS Interpreter)

file(GLOB TensorFlow_installed "${TensorFlow_INCLUDE_DIR}/../../tensorflow*-${TensorFlow_VERSION}.dist-info")
if(NOT TensorFlow_ASKED STREQUAL Python_EXECUTABLE OR NOT TensorFlow_installed)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
      ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/ask_tensorflow.py
    OUTPUT_VARIABLE answer ERROR_VARIABLE errors RESULT_VARIABLE status)
  if(NOT TensorFlow_FIND_REQUIRED AND errors MATCHES "No module named 'tensorflow'")
    return()
  elseif(NOT status EQUAL 0)
    message(FATAL_ERROR "\
horovod_data: TensorFlow can't be imported by ${Python_EXECUTABLE}.
  Looked for: the Python package `tensorflow` with its headers and libraries.
  Works with: TensorFlow 2.15 and newer (Horovod 0.28.1 was made for 2.15; from 2.16 on it needs the patches in packaging/horovod).
  What to do: `pip install tensorflow-cpu==2.21.0` (or tensorflow==2.21.0, with GPU support) first, then \
`pip install --no-build-isolation .`: without --no-build-isolation pip hides the installed TensorFlow from the build.
  Python said:
${errors}")
  endif()
  foreach(line_name VERSION INCLUDE_DIR CXX_STANDARD OPTIONS FRAMEWORK_LIBRARY CC_LIBRARY)
    string(REGEX MATCH "${line_name}=([^\n]*)" line "${answer}")
    set(TensorFlow_${line_name} "${CMAKE_MATCH_1}" CACHE INTERNAL "")
  endforeach()
  set(TensorFlow_ASKED ${Python_EXECUTABLE} CACHE INTERNAL "")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TensorFlow
  REQUIRED_VARS TensorFlow_FRAMEWORK_LIBRARY TensorFlow_INCLUDE_DIR VERSION_VAR TensorFlow_VERSION)

if(NOT TARGET TensorFlow::TensorFlow)
  add_library(TensorFlow::TensorFlow INTERFACE IMPORTED)
  # The include directories of imported targets are SYSTEM ones, so our warnings don't apply to TensorFlow's headers.
  set_target_properties(TensorFlow::TensorFlow PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${TensorFlow_INCLUDE_DIR}"
    INTERFACE_COMPILE_OPTIONS "${TensorFlow_OPTIONS}"
    INTERFACE_LINK_LIBRARIES "${TensorFlow_FRAMEWORK_LIBRARY};${TensorFlow_CC_LIBRARY}")
endif()
