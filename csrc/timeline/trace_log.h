// SPDX-License-Identifier: Apache-2.0
// What a process has done when, until its timeline takes it from here: so much of it and no more, in memory that was taken at
// the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace hvdata {

// Times are nanoseconds of this process's steady clock.
struct TraceEvent {
  static constexpr int32_t kNobody = -1;
  int64_t begin = 0, end = 0;
  const char* name = "";  // of a lasting text; of a reader's row or a trainer's
  uint64_t epoch = 0, step = 0;
  uint32_t channel = 0;
  int32_t whom = kNobody;  // in a trainer's row a reader, in a reader's row a rank
  bool reads = false;      // in a reader's row
  bool moment = false;     // has no duration
};

class TraceLog {
 public:
  explicit TraceLog(size_t most) : most_(most) { events_.reserve(most); }

  // From any thread, under whatever lock. Takes no memory; what finds no room is counted.
  void Add(const TraceEvent& event) {
    MutexLock lock(&mu_);
    if (events_.size() < most_)
      events_.push_back(event);
    else
      ++left_out_;
  }

  // What there is, in exchange for `events`, whose memory is used from now on; and how many there was no room for.
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
