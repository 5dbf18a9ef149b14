// SPDX-License-Identifier: Apache-2.0
// Finds out which processes of this host have died. MPI reports a death much later.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptors.h"
#include "base/world.h"

namespace hvdata {

// The start time of process `pid` in clock ticks since boot. 0: this process can't see process `pid`, which has ended
// or is in another pid namespace.
inline uint64_t ProcessStartTime(int64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t close = stat.rfind(')');  // the command name before it may contain any characters
  if (close == std::string::npos) return 0;
  std::istringstream fields(stat.substr(close + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) fields >> skipped;  // fields 3 to 21
  uint64_t start = 0;
  fields >> start;
  return start;
}

#ifndef SYS_pidfd_open  // headers of the kernel before 5.3
#define SYS_pidfd_open 434
#endif

class Peers {
 public:
  explicit Peers(const World& world) {
    for (size_t i = 0; i < world.members.size(); ++i) {
      const Member& m = world.members[i];
      if (static_cast<int>(i) == world.self || m.host != world.me().host) continue;
      // Containers may share a host name. The start time proves that the pid belongs to this member.
      if (m.started == 0 || ProcessStartTime(m.pid) != m.started) continue;
      const long fd = syscall(SYS_pidfd_open, static_cast<pid_t>(m.pid), 0);
      if (fd >= 0) watched_.emplace_back(static_cast<int>(i), Descriptor(static_cast<int>(fd)));
    }
  }

  // Members on this host that have died since the last call.
  std::vector<int> Died() {
    std::vector<int> died;
    if (watched_.empty()) return died;
    std::vector<pollfd> fds;
    for (const auto& [member, fd] : watched_) fds.push_back({fd.get(), POLLIN, 0});
    if (poll(fds.data(), fds.size(), 0) <= 0) return died;
    for (size_t i = fds.size(); i-- > 0;) {
      if ((fds[i].revents & POLLIN) == 0) continue;
      died.push_back(watched_[i].first);
      watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return died;
  }

 private:
  std::vector<std::pair<int, Descriptor>> watched_;  // member, pidfd
};

}  // namespace hvdata
