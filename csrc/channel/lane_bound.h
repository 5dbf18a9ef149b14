// SPDX-License-Identifier: Apache-2.0
// What one lane holds, in steps and in bytes: sent to its trainer, or waiting to be, and not known to be taken. And what one may
// hold beside the others, where whoever asks first is given the next step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvdata {

// The trainer's window is made for shares as large as the last ones. Here is where larger ones are stopped.
class LaneBound {
 public:
  static constexpr uint64_t kLeast = 2;  // steps, however large

  void Put(uint64_t bytes) {
    ++steps_;
    bytes_ += bytes;
    largest_ = std::max(bytes, largest_ - largest_ / 64);
  }
  void Take(uint64_t bytes) {
    --steps_;
    bytes_ -= bytes;
  }
  // Room for so many more, which are taken to be as large as those before. `most`: bytes; 0: no bound.
  bool RoomFor(uint64_t steps, uint64_t most) const {
    if (most == 0 || steps_ + steps <= kLeast || largest_ == 0) return true;
    return bytes_ <= most && (most - bytes_) / largest_ >= steps;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t steps_ = 0, bytes_ = 0, largest_ = 0;
};

// `dynamic`: what lies with a slow trainer is out of the others' reach. So a lane holds two steps, and beyond them no larger a part
// of the widest window than its trainer's part of the quickest one's pace. Trainers know no pace but their own, and take back no
// limit that they told; here all of them are counted, by steps, without a clock. Of several readers each has its part of a window,
// and one step instead of two where that is their part.
class FairShare {
 public:
  static constexpr uint64_t kRemembers = 256;  // steps of the quickest, about: who becomes slow, or quick, is seen soon

  // `widest`: steps of a window, at most.
  FairShare(size_t lanes, uint64_t widest, uint64_t readers = 1)
      : taken_(lanes, 0), widest_((widest + readers - 1) / readers), least_(readers > 1 ? 1 : LaneBound::kLeast) {}

  void Take(size_t lane) {
    quickest_ = std::max(quickest_, ++taken_[lane]);
    if (quickest_ < kRemembers) return;
    for (uint64_t& taken : taken_) taken /= 2;
    quickest_ /= 2;
  }
  uint64_t Most(size_t lane) const { return least_ + widest_ * (taken_[lane] + 1) / (quickest_ + 1); }

 private:
  std::vector<uint64_t> taken_;  // lately
  uint64_t quickest_ = 0;        // the most of these
  const uint64_t widest_, least_;
};

}  // namespace hvdata
