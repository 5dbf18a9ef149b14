// SPDX-License-Identifier: Apache-2.0
// How eagerly the communication thread looks for news. MPI has no portable way to sleep until a message comes.
#pragma once

#include <algorithm>
#include <chrono>

namespace hvdata {

// How long to sleep when nothing has happened for `quiet`. Zero: give the core away once, then look again.
// A transfer is under way while MPI holds requests of ours. It gives no sign of life before a piece is complete, and
// over sockets it moves only while somebody polls: so it is polled for longer, and left to the long naps later.
// News is late by a fifth of the silence before it at most, but by no more than a millisecond, or a hundredth of it: data every
// 20 ms costs some 40 looks. A thread that has been idle for half a second wakes 200 times a second, for less than 0.5 %
// of a core.
inline std::chrono::microseconds Nap(std::chrono::nanoseconds quiet, bool transferring) {
  using namespace std::chrono_literals;
  using std::chrono::microseconds;
  if (quiet < (transferring ? 5ms : 50us)) return 0us;
  if (transferring && quiet < 1000ms) return 50us;
  const auto part = std::max<std::chrono::nanoseconds>(std::min<std::chrono::nanoseconds>(quiet / 5, 1ms), quiet / 100);
  return std::clamp<microseconds>(std::chrono::duration_cast<microseconds>(part), 50us, 5ms);
}

}  // namespace hvdata
