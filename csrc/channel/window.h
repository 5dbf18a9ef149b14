// SPDX-License-Identifier: Apache-2.0
// How many steps a rank asks for ahead: a fixed number, or prefetch="auto". Pure; not thread-safe.
//
// The auto window starts at 2 steps. It doubles when the rank waits with a full window. It also doubles when the rank consumes a
// window in under 1 ms: waking the reader for every few steps costs as much as the steps themselves. Its shares take at most a number
// of bytes, except that 2 steps are always allowed. Under `dynamic` other ranks can't get a share that one rank has asked for. So
// there the window is at most what the rank consumes in 5 ms. If all ranks are faster than that, the reader bounds each by its pace (credit.h).
// The window changes when a share is sent, never which share.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

class Window {
 public:
  static constexpr int kLeast = 2, kMost = 64;
  static constexpr int64_t kDynamicNs = 5000000, kTooSoonNs = 1000000;

  // `fixed`: steps; 0: auto, up to `bytes` of this rank's shares.
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

  // A share has come.
  void Came(uint64_t bytes) {
    largest_ = std::max(bytes, largest_ - largest_ / kForgets);  // the size of one large share fades
  }
  // An epoch begins.
  void Begins() { taken_ = 0; }
  // The rank has taken a share, after `step_ns` on the one before.
  void Took(int64_t step_ns) {
    taken_ = std::min(taken_ + 1, kMost);
    step_ns_ = step_ns_ < 0 ? step_ns : step_ns_ + (step_ns - step_ns_) / kForgetsSteps;
    if (step_ns_ < kTooSoonNs / width_) Widen();
  }
  // The rank has to wait for the next share.
  void Waits() { Widen(); }

 private:
  static constexpr uint64_t kForgets = 64;
  static constexpr int64_t kForgetsSteps = 8;

  // A width shows its effect only after as many steps have gone through it. At an epoch's begin only a faster pipeline would help.
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
