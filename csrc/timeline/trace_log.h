// SPDX-License-Identifier: Apache-2.0
// The events of a process, until its timeline takes them. The memory is allocated at the start, and never grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace hvdata {

// One event, as the process's file has it (timeline/file.h). Times are nanoseconds of the process's steady clock.
struct TraceEvent {
  static constexpr int32_t kNobody = -1;
  int64_t begin = 0, end = 0;
  uint64_t epoch = 0, step = 0;
  uint32_t channel = 0;
  int32_t whom = kNobody;  // a reader, in a trainer's row; a rank, in a reader's row
  char name[14] = "";      // the longest name, "wait for data", fills it
  bool reads = false;      // the event is in a reader's row; false: in a trainer's row
  bool moment = false;     // has no duration
};
static_assert(sizeof(TraceEvent) == 56, "horovod_data reads events of this size");

class TraceLog {
 public:
  explicit TraceLog(size_t most) : most_(most) { events_.reserve(most); }

  // Any thread may call it, under any lock. It allocates nothing. An event that finds no room is only counted.
  void Add(const TraceEvent& event) {
    MutexLock lock(&mu_);
    if (events_.size() < most_)
      events_.push_back(event);
    else
      ++left_out_;
  }

  // Moves the events to `events`, whose memory then takes the next events. Returns how many events found no room.
  uint64_t Take(std::vector<TraceEvent>* events) {
    events->clear();
    events->reserve(most_);
    MutexLock lock(&mu_);
    events->swap(events_);
    return std::exchange(left_out_, 0);
  }

 private:
  const size_t most_;
  Mutex mu_{Mutex::kLast};
  std::vector<TraceEvent> events_ GUARDED_BY(mu_);
  uint64_t left_out_ GUARDED_BY(mu_) = 0;
};

}  // namespace hvdata
