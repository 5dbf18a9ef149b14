// SPDX-License-Identifier: Apache-2.0
// Counts SIGINTs, so that a wait in C++ can end at Ctrl-C. Python's own handler only sets a flag, which Python reads
// after the wait has returned.
#pragma once

#include <cstdint>

namespace hvdata {

// Number of SIGINTs seen so far.
uint64_t Interrupts();

// From now on counts SIGINTs, and passes each to the handler that is installed now. If no handler is installed, the
// default action or SIG_IGN stays, and nothing is counted. Returns Interrupts().
uint64_t WatchInterrupts();

}  // namespace hvdata
