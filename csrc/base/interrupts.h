// SPDX-License-Identifier: Apache-2.0
// Ctrl-C while a thread waits in C++: Python's own handler only sets a flag that nobody looks at until the wait returns.
#pragma once

#include <cstdint>

namespace hvdata {

// Number of SIGINTs seen so far.
uint64_t Interrupts();

// Makes sure that SIGINTs are counted from here on, in front of the handler that is installed now (none is installed
// over the default action, which ends the process anyway). Returns Interrupts().
uint64_t WatchInterrupts();

}  // namespace hvdata
