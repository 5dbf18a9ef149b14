// SPDX-License-Identifier: Apache-2.0
// How eagerly the communication thread looks for news. MPI has no portable way to sleep until a message comes.
#ifndef HOROVOD_DATA_TRANSPORT_PACE_H_
#define HOROVOD_DATA_TRANSPORT_PACE_H_

#include <algorithm>
#include <chrono>

namespace hvdata {

// How long to sleep when nothing has happened for `quiet`. Zero: give the core away once, then look again.
// A transfer is under way while MPI holds requests of ours. It gives no sign of life before a piece is complete, and
// over sockets it moves only while somebody polls: so it is polled for longer, and left to the long naps later.
// A nap of more than a millisecond is a hundredth of the silence before it: news is never late by more than that. A
// thread that has been idle for half a second wakes 200 times a second, for less than 0.5 % of a core.
inline std::chrono::microseconds Nap(std::chrono::nanoseconds quiet, bool transferring) {
  using namespace std::chrono_literals;
  using std::chrono::microseconds;
  if (quiet < (transferring ? 5ms : 50us)) return 0us;
  if (quiet < (transferring ? 1000ms : 5ms)) return 50us;
  return std::clamp<microseconds>(std::chrono::duration_cast<microseconds>(quiet / 100), 1ms, 5ms);
}

}  // namespace hvdata

#endif  // HOROVOD_DATA_TRANSPORT_PACE_H_
