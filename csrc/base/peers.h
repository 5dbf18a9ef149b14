// SPDX-License-Identifier: Apache-2.0
// Watches the other members on this host. It notices the death of such a process at once. MPI reports the death much
// later.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/world.h"

namespace hvdata {

// The start time of process `pid` in clock ticks since boot. 0: this process can't see `pid`, because of another pid
// namespace.
uint64_t ProcessStartTime(int64_t pid);

class Peers {
 public:
  explicit Peers(const World& world);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Members on this host that have died since the last call.
  std::vector<int> Died();

 private:
  std::vector<std::pair<int, int>> watched_;  // member, pidfd
};

}  // namespace hvdata
