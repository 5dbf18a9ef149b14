// SPDX-License-Identifier: Apache-2.0
// What a process has done and when, until its timeline takes it from here. The memory is taken at the start, and never grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace hvdata {

// As it lies in the process's file (timeline/file.h). Times are nanoseconds of this process's steady clock.
struct TraceEvent {
  static constexpr int32_t kNobody = -1;
  int64_t begin = 0, end = 0;
  uint64_t epoch = 0, step = 0;
  uint32_t channel = 0;
  int32_t whom = kNobody;  // in a trainer's row a reader, in a reader's row a rank
  char name[14] = "";      // "wait for data", which is the longest name, fills it
  bool reads = false;      // in a reader's row, not in a trainer's
  bool moment = false;     // has no duration
};
static_assert(sizeof(TraceEvent) == 56, "horovod_data reads events of this size");

class TraceLog {
 public:
  explicit TraceLog(size_t most) : most_(most) { events_.reserve(most); }

  // From any thread, under any lock. Takes no memory. Counts an event that finds no room.
  void Add(const TraceEvent& event) {
    MutexLock lock(&mu_);
    if (events_.size() < most_)
      events_.push_back(event);
    else
      ++left_out_;
  }

  // Moves the events to `events`, whose memory takes the next ones. Returns how many events found no room.
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
