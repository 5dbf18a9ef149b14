# SPDX-License-Identifier: Apache-2.0
# Sets `without_spreading`: what goes before a sanitized program.
#
# Sanitizers want memory at addresses of their own, and older ones die where the kernel spreads mappings further than they
# know (vm.mmap_rnd_bits=32, as on Ubuntu 24.04). So their programs run without that, where it is permitted; in many
# containers it is not.
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
