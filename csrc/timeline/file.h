// SPDX-License-Identifier: Apache-2.0
// One process's part of the timeline: a file that only grows. It is a sequence of blocks. A block is a name of four
// letters, the size of the payload (uint32), and the payload. Python makes JSON of it (horovod_data/timeline). The file
// of a killed process may end within a block.
//
//   HEAD  text "FORMAT TRAINER READER RANKS READERS HOST": the process that writes this file. The first block.
//         TRAINER or READER may be -1
//   CLCK  Clock: the time of reader 0's clock when ours is `here`
//   CHAN  uint32 number, name: of a channel whose events follow
//   EVNT  TraceEvents
//   LOST  uint64 count, int64 now: the number of events that found no room between the last LOST and now
//   ENDS  uint64: the sum of these counts. The last block
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/log.h"

namespace hvdata {

// Times are nanoseconds of steady clocks. In processes that share reader 0's clock, round_trip is 0.
struct Clock {
  int64_t here = 0, there = 0;
  int64_t round_trip = 0;  // of the PING that measured it: `there` is wrong by at most half of it
  int64_t zero = 0;        // the timeline's time 0, by reader 0's clock
  int64_t wall = 0;        // microseconds since 1970 at `here`, by this host's clock
};

// Only the thread of FileWriter() uses it. The file is open only during Append. Otherwise a program that closes all
// descriptors (`os.closerange`) could get our descriptor's number for a file of its own, and we would write there.
class TimelineFile {
 public:
  // `place` begins the log line about a file that can't be written.
  TimelineFile(std::string path, Place place) : path_(std::move(path)), place_(std::move(place)) {}

  // The first call empties the file. A failure is logged, and nothing more is written after it.
  void Append(std::string_view block) {
    if (failed_) return;
    waiting_.append(block);
    const int fd = open(path_.c_str(), O_WRONLY | O_CLOEXEC | (begun_ ? O_APPEND : O_CREAT | O_TRUNC), 0666);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) return;  // a later call writes it
    begun_ = true;
    failed_ = fd < 0;
    for (std::string_view rest = waiting_; !failed_ && !rest.empty();) {
      const ssize_t n = write(fd, rest.data(), rest.size());
      if (n >= 0) rest.remove_prefix(static_cast<size_t>(n));
      failed_ = n < 0 && errno != EINTR;
    }
    waiting_.clear();
    if (failed_)
      Log(place_, "the timeline of this process ends here: " + path_ + " can't be written: " + std::strerror(errno) +
                      ". Make room there, or name a file that can be written on every host (HOROVOD_DATA_TIMELINE)");
    if (fd >= 0) close(fd);
  }

 private:
  const std::string path_;
  const Place place_;
  std::string waiting_;  // blocks that found no descriptor
  bool begun_ = false, failed_ = false;
};

}  // namespace hvdata
