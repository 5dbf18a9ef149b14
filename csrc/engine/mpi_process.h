// SPDX-License-Identifier: Apache-2.0
// MPI in this process, before and after the engine: its initialisation, its end, and the end of the process.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/outcome.h"

namespace hvdata {

struct MpiState {
  bool initialized = false, finalized = false;
  int thread_level = -1;  // 0 SINGLE .. 3 MULTIPLE
};
MpiState QueryMpi();

// The texts of all ranks, in rank order. Collective on `comm`.
std::vector<std::string> GatherOver(MPI_Comm comm, const std::string& mine);

// Calls MPI_Init_thread(MPI_THREAD_MULTIPLE). MPI is then finalised when the process exits.
Outcome InitMpi();

// From now on, an MPI_Finalize that other code calls begins with a call of `stop`. Before this library calls
// MPI_Finalize itself, it calls `stop` directly. Call this once in a process.
void BeforeMpiFinalize(void (*stop)());

// All ranks end with this status, after they have left the job. So this process does not abort the job when it exits
// with this status.
void EndTogether(int status);

// Ends the whole job, or at least this process. Does not return.
[[noreturn]] void Abort(int status);

// Runs `body`. After an exception the job ends, because other processes would wait for the rest of `body` for ever.
// `place` begins the log line.
template <typename Body>
void OrAbort(const Place& place, Body body) {
  const Outcome thrown = Guarded([&] { return body(), Outcome(); });
  if (thrown.ok()) return;
  Log(place, thrown.message);
  Abort(1);
}

}  // namespace hvdata
