// SPDX-License-Identifier: Apache-2.0
// A stopwatch that adds each lap to the timeline, if there is one. Without a timeline that costs one test of a pointer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/stopwatch.h"
#include "channel/times.h"
#include "timeline/trace_log.h"

namespace hvdata {

template <typename Does>
class TracedWatch {
 public:
  // Call it before the first TurnTo. `others`: by lane, the number of the process at its other end, as texts name it. A
  // lap shorter than `least` nanoseconds is left out, for example a look at an empty queue.
  void TraceTo(TraceLog* log, uint32_t channel, std::vector<int> others, int64_t least = 1000) {
    log_ = log;
    channel_ = channel;
    least_ = least;
    others_ = std::move(others);
  }

  // The next TurnTo begins a lap of this step and this lane. -1: the lap has no lane, or the lane is not known yet.
  void At(uint64_t epoch, uint64_t step, int lane = -1) {
    if (log_ == nullptr) return;
    const std::lock_guard<std::mutex> lock(mu_);
    next_ = {epoch, step, lane};
  }

  // Begins a lap. Returns the length of the last lap. `lane`: the lane of the last lap, if it becomes known only now.
  int64_t TurnTo(Does what, int lane = -1) {
    if (log_ == nullptr) return watch_.TurnTo(what).spent();
    const std::lock_guard<std::mutex> lock(mu_);
    const auto lap = watch_.TurnTo(what);
    Note(lap, lane);
    if (what == Does::kNothing && lap.what != what) Moment("epoch ends", lap.end);
    begun_ = next_;
    if (lap.what == Does::kNothing && lap.what != what) Moment("epoch begins", lap.end);
    return lap.spent();
  }

  // Adds the current lap to the timeline, up to now, if at least `least` nanoseconds of it are not in the timeline. Any
  // thread may call it.
  void NoteUnderWay(int64_t least = 0) {
    if (log_ == nullptr) return;
    const std::lock_guard<std::mutex> lock(mu_);
    const auto lap = watch_.UnderWay();
    if (lap.end - std::max(lap.begin, noted_) >= least) Note(lap, -1);
  }

  typename Stopwatch<Does>::Sums Read(bool reset = false) { return watch_.Read(reset); }

 private:
  static constexpr bool kReads = std::is_same_v<Does, ReaderDoes>;

  struct Place {
    uint64_t epoch = 0, step = 0;
    int lane = -1;
  };

  void Note(const typename Stopwatch<Does>::Lap& lap, int lane) {
    const int64_t begin = std::max(lap.begin, std::exchange(noted_, lap.end));
    if (lap.what == Does::kNothing || lap.end - begin < least_) return;
    if (lane < 0) lane = begun_.lane;
    Add(NameOf(lap.what), begin, lap.end, lane < 0 ? TraceEvent::kNobody : others_[static_cast<size_t>(lane)], false);
  }

  void Moment(const char* name, int64_t now) { Add(name, now, now, TraceEvent::kNobody, true); }

  void Add(const char* name, int64_t begin, int64_t end, int32_t whom, bool moment) {
    TraceEvent event{begin, end, begun_.epoch, begun_.step, channel_, whom, {}, kReads, moment};
    std::memcpy(event.name, name, strnlen(name, sizeof event.name));
    log_->Add(event);
  }

  Stopwatch<Does> watch_;
  TraceLog* log_ = nullptr;
  uint32_t channel_ = 0;
  int64_t least_ = 0;
  std::vector<int> others_;
  // A plain std::mutex, as in Stopwatch. It guards the members after it.
  std::mutex mu_;
  Place next_, begun_;  // of the next lap, and of the current one
  int64_t noted_ = 0;   // the timeline has the laps up to this time
};

}  // namespace hvdata
