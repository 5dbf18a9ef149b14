// SPDX-License-Identifier: Apache-2.0
// How many steps a rank asks for ahead: a fixed number, or prefetch="auto". Not thread-safe.
//
// The auto window starts at 2 steps. It doubles when the rank waits with a full window. It also doubles when the rank
// consumes a window in under 1 ms, because with such a small window, waking the reader would cost as much as the steps
// themselves. The window's shares take at most a given number of bytes, but 2 steps are always allowed. Under `dynamic`
// a share that one rank has asked for can't go to another rank. So there the window is at most the number of steps that
// the rank consumes in 5 ms. The window decides when a share is sent. It never decides which share is sent.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

class Window {
 public:
  static constexpr int kLeast = 2, kMost = 64;
  static constexpr int64_t kDynamicNs = 5000000, kTooSoonNs = 1000000;

  // `fixed`: steps. 0: auto, up to `bytes` for this rank's shares.
  Window(int fixed, uint64_t bytes, bool dynamic) : fixed_(fixed), bytes_(bytes), dynamic_(dynamic) {}

  bool fits_itself() const { return fixed_ == 0; }
  int Steps() const {
    if (!fits_itself()) return fixed_;
    int steps = std::min(width_, MostSteps());
    if (dynamic_) {
      const int64_t most = step_ns_ < 0 ? kLeast : kDynamicNs / std::max<int64_t>(step_ns_, 1);
      steps = static_cast<int>(std::min<int64_t>(steps, most));
    }
    return std::max(steps, kLeast);
  }

  void Came(uint64_t bytes) {
    largest_ = std::max(bytes, largest_ - largest_ / kForgets);  // the size of one large share fades
  }
  void Begins() { taken_ = 0; }
  // Call it when the rank has taken a share. `step_ns`: the time of the step before.
  void Took(int64_t step_ns) {
    taken_ = std::min(taken_ + 1, kMost);
    step_ns_ = step_ns_ < 0 ? step_ns : step_ns_ + (step_ns - step_ns_) / kForgetsSteps;
    if (step_ns_ < kTooSoonNs / width_) Widen();
  }
  void Waits() { Widen(); }

 private:
  static constexpr uint64_t kForgets = 64;
  static constexpr int64_t kForgetsSteps = 8;

  // A new width of n steps takes effect only after n steps. So the window doubles only after n steps with this width.
  // The count begins again with each epoch: if a rank waits at the beginning, only a faster pipeline would help.
  void Widen() {
    if (taken_ < width_ || width_ > MostSteps()) return;
    width_ = std::min(2 * width_, kMost);
    taken_ = 0;
  }
  int MostSteps() const {
    if (largest_ == 0) return kMost;
    return static_cast<int>(std::min<uint64_t>(bytes_ / largest_, kMost));
  }

  const int fixed_;
  const uint64_t bytes_;
  const bool dynamic_;
  int width_ = kLeast;
  int taken_ = 0;         // steps of this epoch since the width last changed
  uint64_t largest_ = 0;  // bytes of a share
  int64_t step_ns_ = -1;  // below 0: unknown
};

}  // namespace hvdata
