// SPDX-License-Identifier: Apache-2.0
// A process's part of the timeline as text: one event a line, in Chrome's JSON trace format, each with a comma behind it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/world.h"
#include "timeline/trace_log.h"

namespace hvdata {

class TimelineLines {
 public:
  explicit TimelineLines(const World& world);

  // Who this process is: a row of its own, in the order of ranks, dedicated readers behind them.
  std::string Process() const;
  // How this process's clock is told. `wall`: microseconds since 1970 at the timeline's time 0, by this host's clock.
  std::string Clock(int64_t wall, int64_t offset_ns, int64_t round_trip_ns) const;
  // `begin`, `end`: nanoseconds since the timeline's time 0. The first event of a channel is behind the name of its line.
  void Append(const TraceEvent& event, int64_t begin, int64_t end, const std::string& channel, std::string* lines);
  // How many events there was no room for, up to then.
  std::string LeftOut(uint64_t count, int64_t now) const;

 private:
  const World& world_;
  const int row_;
  std::set<std::pair<uint32_t, bool>> named_;  // channels, and whether as reader
};

// How many of these lines are events that processes have noted.
uint64_t CountEvents(std::string_view lines);

// The file's first line and its last: without the latter the job was killed.
std::string TimelineBegin(const World& world);
std::string TimelineEnd(const World& world, uint64_t left_out);

}  // namespace hvdata
