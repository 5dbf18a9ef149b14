// SPDX-License-Identifier: Apache-2.0
// Counts SIGINTs, so that a wait in C++ can end at Ctrl-C. Python's own handler only sets a flag, which Python reads
// after the wait has returned.
#pragma once

#include <cstdint>

namespace hvdata {

// Number of SIGINTs seen so far.
uint64_t Interrupts();

// From now on counts SIGINTs, and then calls the handler that is installed now. Except: if the default action is
// installed, it stays, and ends the process. Returns Interrupts().
uint64_t WatchInterrupts();

}  // namespace hvdata
