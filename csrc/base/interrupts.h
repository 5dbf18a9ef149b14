// SPDX-License-Identifier: Apache-2.0
// Counts SIGINTs, so that a wait in C++ can end at Ctrl-C. Python's own handler only sets a flag, which is read when the wait
// has returned.
#pragma once

#include <cstdint>

namespace hvdata {

// Number of SIGINTs seen so far.
uint64_t Interrupts();

// From now on SIGINTs are counted, and then passed to the handler that is installed now. Where the default action is installed,
// it stays: it ends the process. Returns Interrupts().
uint64_t WatchInterrupts();

}  // namespace hvdata
