# SPDX-License-Identifier: Apache-2.0
# Target hvdata_mpi: the C bindings of the MPI that MPICC, MPI_HOME or PATH name. The C++ bindings, which MPI dropped in 2012, would tie
# the library to one compiler.

enable_language(C)

if(NOT "$ENV{MPICC}" STREQUAL "")
  find_program(HVDATA_MPICC NAMES "$ENV{MPICC}" NO_CACHE)
  if(HVDATA_MPICC)
    set(MPI_C_COMPILER ${HVDATA_MPICC} CACHE FILEPATH "MPI compiler wrapper for C" FORCE)
  endif()
endif()
# A wrong MPICC must stop the build. Otherwise another MPI would be used without a word.
if("$ENV{MPICC}" STREQUAL "" OR HVDATA_MPICC)
  set(MPI_C_COMPILER_FLAGS "")
  find_package(MPI QUIET COMPONENTS C)
endif()

if(NOT MPI_C_FOUND)
  foreach(name MPICC MPI_HOME)
    if("$ENV{${name}}" STREQUAL "")
      set(value_${name} "not set")
    else()
      set(value_${name} "'$ENV{${name}}'")
    endif()
  endforeach()
  message(FATAL_ERROR "\
horovod_data: no MPI library for C was found.
  Looked for: a compiler wrapper named by MPICC (${value_MPICC}), an installation in MPI_HOME (${value_MPI_HOME}), \
and mpicc in PATH ($ENV{PATH}).
  Works with: Open MPI 4 and 5, MPICH 3.4 and 4, and other MPI 3.1 libraries that give MPI_THREAD_MULTIPLE. \
It must be the MPI that Horovod and mpi4py were built with.
  What to do: `apt-get install libopenmpi-dev openmpi-bin` (Debian, Ubuntu), `dnf install openmpi-devel` (Fedora, RHEL), \
`module load openmpi` (clusters); or name the one you have: `MPICC=/path/to/mpicc pip install --no-build-isolation .`, \
`MPI_HOME=/path/to/mpi pip install ...`.")
endif()

add_library(hvdata_mpi INTERFACE)
target_link_libraries(hvdata_mpi INTERFACE MPI::MPI_C)
target_compile_definitions(hvdata_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

set(HVDATA_MPI_RPATH)
foreach(library IN LISTS MPI_C_LIBRARIES)
  get_filename_component(directory ${library} DIRECTORY)
  get_filename_component(directory ${directory} REALPATH)
  if(NOT directory IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
    list(APPEND HVDATA_MPI_RPATH ${directory})
  endif()
endforeach()
list(REMOVE_DUPLICATES HVDATA_MPI_RPATH)
message(STATUS "MPI: ${MPI_C_COMPILER} (MPI ${MPI_C_VERSION}), ${MPI_C_LIBRARIES}")
