# SPDX-License-Identifier: Apache-2.0
# Sets `without_spreading`: the command before a sanitized program, `setarch -R`, or nothing.
#
# Sanitizers need memory at fixed addresses. Older ones fail if the kernel spreads mappings too far (vm.mmap_rnd_bits=32, as on
# Ubuntu 24.04). `setarch -R` turns that off. Many containers forbid it.
find_program(HVDATA_SETARCH setarch)
mark_as_advanced(HVDATA_SETARCH)
set(without_spreading)
if(HVDATA_SETARCH)
  set(command ${HVDATA_SETARCH} ${CMAKE_HOST_SYSTEM_PROCESSOR} -R)
  execute_process(COMMAND ${command} true RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0)
    set(without_spreading ${command})
  endif()
endif()
