// SPDX-License-Identifier: Apache-2.0
// A stopwatch that adds each lap to the timeline, if there is one. Without a timeline that costs one test of a pointer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
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
    epoch_.store(epoch, std::memory_order_relaxed);
    step_.store(step, std::memory_order_relaxed);
    lane_.store(lane, std::memory_order_relaxed);
  }

  // Begins a lap. Returns the length of the last lap. `lane`: the lane of the last lap, if it becomes known only now.
  int64_t TurnTo(Does what, int lane = -1) {
    const auto lap = watch_.TurnTo(what);
    if (log_ != nullptr) {
      Note(lap, lane);
      if (what == Does::kNothing && lap.what != what) Moment("epoch ends", lap.end);
      begun_epoch_.store(epoch_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      begun_step_.store(step_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      begun_lane_.store(lane_.load(std::memory_order_relaxed), std::memory_order_relaxed);
      if (lap.what == Does::kNothing && lap.what != what) Moment("epoch begins", lap.end);
    }
    return lap.spent();
  }

  // Adds the current lap to the timeline, up to now, if at least `least` nanoseconds of it are not in the timeline. Any
  // thread may call it.
  void NoteUnderWay(int64_t least = 0) {
    if (log_ == nullptr) return;
    const auto lap = watch_.UnderWay();
    if (lap.end - std::max(lap.begin, noted_.load(std::memory_order_relaxed)) >= least) Note(lap, -1);
  }

  typename Stopwatch<Does>::Sums Read() const { return watch_.Read(); }

 private:
  static constexpr bool kReads = std::is_same_v<Does, ReaderDoes>;

  void Note(const typename Stopwatch<Does>::Lap& lap, int lane) {
    const int64_t begin = std::max(lap.begin, noted_.exchange(lap.end, std::memory_order_relaxed));
    if (lap.what == Does::kNothing || lap.end - begin < least_) return;
    if (lane < 0) lane = begun_lane_.load(std::memory_order_relaxed);
    Add(NameOf(lap.what), begin, lap.end, lane < 0 ? TraceEvent::kNobody : others_[static_cast<size_t>(lane)], false);
  }

  void Moment(const char* name, int64_t now) { Add(name, now, now, TraceEvent::kNobody, true); }

  void Add(const char* name, int64_t begin, int64_t end, int32_t whom, bool moment) {
    TraceEvent event{begin,
                     end,
                     begun_epoch_.load(std::memory_order_relaxed),
                     begun_step_.load(std::memory_order_relaxed),
                     channel_,
                     whom,
                     {},
                     kReads,
                     moment};
    std::memcpy(event.name, name, strnlen(name, sizeof event.name));
    log_->Add(event);
  }

  Stopwatch<Does> watch_;
  TraceLog* log_ = nullptr;
  uint32_t channel_ = 0;
  int64_t least_ = 0;
  std::vector<int> others_;
  std::atomic<uint64_t> epoch_{0}, step_{0}, begun_epoch_{0}, begun_step_{0};
  std::atomic<int> lane_{-1}, begun_lane_{-1};
  std::atomic<int64_t> noted_{0};  // the timeline has the laps up to this time
};

}  // namespace hvdata
