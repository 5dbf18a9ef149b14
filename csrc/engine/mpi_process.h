// SPDX-License-Identifier: Apache-2.0
// MPI in this process, before and after the engine: who initialises it, who finalises it, and how the process ends.
#pragma once

#include <mpi.h>

#include "base/outcome.h"

namespace hvdata {

struct MpiState {
  bool initialized = false, finalized = false;
  int thread_level = -1;  // 0 SINGLE .. 3 MULTIPLE
};
MpiState QueryMpi();

// MPI_Init_thread(MPI_THREAD_MULTIPLE); what we initialise we finalise when the process exits.
Outcome InitMpi();

// Calls `stop` at the start of MPI_Finalize, whoever calls that, and just before it where we do. Once per process.
void BeforeMpiFinalize(void (*stop)());

// MPI's connections to the launcher are gone: from now on Abort() ends this process alone, of which the launcher hears. False: that
// was known.
bool CutOff();

// Ends the whole job, or at least this process. Does not return.
[[noreturn]] void Abort(int status);

}  // namespace hvdata
