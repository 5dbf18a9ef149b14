// SPDX-License-Identifier: Apache-2.0
// What one lane holds, in steps and in bytes: sent to its trainer, or waiting to be, and not known to be taken.
#pragma once

#include <algorithm>
#include <cstdint>

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

}  // namespace hvdata
