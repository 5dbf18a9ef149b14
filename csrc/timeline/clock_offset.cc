// SPDX-License-Identifier: Apache-2.0
#include "timeline/clock_offset.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <functional>
#include <string>

namespace hvdata {

void ClockOffset::Add(int64_t asked, int64_t there, int64_t back) {
  const Sample one{there - (asked + (back - asked) / 2), back - asked, back};
  // All age alike: of two the better one stays it.
  if (!best_ || one.round_trip / 2 <= best_->round_trip / 2 + (back - best_->at) / kDriftOneIn) best_ = one;
}

void ClockOffset::Fix(int64_t now) {
  if (!known()) return;
  const int64_t offset = this->offset();
  const size_t n = fixes_.size();
  if (n >= 2 && fixes_[n - 1].offset == offset && fixes_[n - 2].offset == offset) {
    fixes_.back().here = now;  // still
    return;
  }
  const int64_t least = n > 0 ? fixes_.back().offset - (now - fixes_.back().here) : offset;  // their clock goes on, too
  fixes_.push_back({now, std::max(offset, least)});
  if (fixes_.size() > kFixes) fixes_.pop_front();
}

int64_t ClockOffset::There(int64_t here) const {
  if (fixes_.empty()) return here + offset();
  const auto before = [](const Fixed& fixed, int64_t time) { return fixed.here < time; };
  const auto after = std::lower_bound(fixes_.begin(), fixes_.end(), here, before);
  if (after == fixes_.begin()) return here + fixes_.front().offset;
  const Fixed& last = *(after - 1);
  if (after == fixes_.end() || after->here == last.here) return here + last.offset;
  const double part = static_cast<double>(here - last.here) / static_cast<double>(after->here - last.here);
  return here + last.offset + static_cast<int64_t>(part * static_cast<double>(after->offset - last.offset));
}

// Processes of one kernel and one time namespace: containers on one host may have several of these.
uint64_t SteadyClockId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[PATH_MAX];
  const ssize_t n = readlink("/proc/self/ns/time", space, sizeof space);
  if (boot.empty()) return 0;
  return std::hash<std::string>()(boot + (n > 0 ? std::string(space, static_cast<size_t>(n)) : "")) | 1;
}

}  // namespace hvdata
