// SPDX-License-Identifier: Apache-2.0
// What another process's steady clock shows, from questions and answers, as NTP does it: of an answer that took long to come it
// is not known when in that time it was given, so the quickest of the last ones counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace hvdata {

// All times are nanoseconds. Not thread-safe.
class ClockOffset {
 public:
  // Asked at `asked` and answered at `back`, by our clock; `there` is what theirs showed when it was answered.
  void Add(int64_t asked, int64_t there, int64_t back);
  // It is the same clock.
  void Same() { same_ = true; }
  bool known() const { return same_ || best_; }

  // Times up to `now`, which never goes back, are from now on told as is known now: There() of a time before that gives the
  // same for ever, and of one that lies after another never an earlier one. So what does not overlap here doesn't there.
  void Fix(int64_t now);
  // What their clock showed when ours showed `here`. After the first Fix(), for times up to the last.
  int64_t There(int64_t here) const;

  // Theirs less ours, as known now, which is wrong by half a round trip at most, and by what the clocks have drifted since.
  int64_t offset() const { return same_ ? 0 : best_->offset; }
  int64_t round_trip() const { return same_ ? 0 : best_->round_trip; }

 private:
  // Clocks of two machines drift apart by some 50 us in a second at most. So an answer that was quick is better than a slow one
  // that came later, while it has not drifted by more than they differ: for seconds, where batches fill the link.
  static constexpr int64_t kDriftOneIn = 20000;
  static constexpr size_t kFixes = 4096;  // phases that began longer ago than that are few

  struct Sample {
    int64_t offset, round_trip, at;
  };
  struct Fixed {
    int64_t here, offset;
  };
  bool same_ = false;
  std::optional<Sample> best_;
  std::deque<Fixed> fixes_;
};

// A number of the clock that this process's steady_clock reads: two processes with the same one share it. 0: not known.
uint64_t SteadyClockId();

}  // namespace hvdata
