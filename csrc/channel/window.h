// SPDX-License-Identifier: Apache-2.0
// How many steps a rank asks for ahead: a fixed number, or as many as help. Pure; not thread-safe.
//
// One that fits itself begins with two steps and doubles when the rank has had to wait although it had asked for all that it
// might, or works off in less than a millisecond what it may ask for: nobody waits for anything then, but the reader is woken for
// every few steps, which costs as much as they do. It has no more than a number of bytes, but two steps in any case. Under `dynamic` what a rank has asked for is out of
// the others' reach, so there it is no wider than what the rank works off in a few milliseconds: a slow one keeps to two. Where
// all are so quick that this is no bound, the reader keeps them apart, which sees all of them (FairShare).
// It changes when a share is sent, never which one.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hvdata {

class Window {
 public:
  static constexpr int kLeast = 2, kMost = 64;
  static constexpr int64_t kWorkedOffInNs = 5000000, kTooSoonInNs = 1000000;

  // `fixed`: steps; 0: it fits itself, to `bytes` of this rank's shares.
  Window(int fixed, uint64_t bytes, bool dynamic) : fixed_(fixed), bytes_(bytes), dynamic_(dynamic) {}

  bool fits_itself() const { return fixed_ == 0; }
  int Steps() const {
    if (!fits_itself()) return fixed_;
    int steps = std::min(width_, Bound());
    if (dynamic_)
      steps = static_cast<int>(
          std::min<int64_t>(steps, step_ns_ < 0 ? kLeast : kWorkedOffInNs / std::max<int64_t>(step_ns_, 1)));
    return std::max(steps, kLeast);
  }

  // A share has come.
  void Came(uint64_t bytes) {
    largest_ = std::max(bytes, largest_ - largest_ / kForgets);  // one large one is not for ever
  }
  // An epoch begins.
  void Begins() { taken_ = 0; }
  // One has been taken, and the rank has spent `step_ns` on it.
  void Took(int64_t step_ns) {
    taken_ = std::min(taken_ + 1, kMost);
    step_ns_ = step_ns_ < 0 ? step_ns : step_ns_ + (step_ns - step_ns_) / kForgetsSteps;
    if (step_ns_ < kTooSoonInNs / width_) Widen();
  }
  // The rank has to wait for the next one.
  void Waits() { Widen(); }

 private:
  static constexpr uint64_t kForgets = 64;
  static constexpr int64_t kForgetsSteps = 8;

  // What is seen tells something of a width only when that many steps have gone through it: for the first steps of an epoch nothing
  // but the pipeline can be quicker.
  void Widen() {
    if (taken_ < width_ || width_ > Bound()) return;
    width_ = std::min(2 * width_, kMost);
    taken_ = 0;
  }
  int Bound() const {
    if (largest_ == 0) return kMost;
    return static_cast<int>(std::min<uint64_t>(bytes_ / largest_, kMost));
  }

  const int fixed_;
  const uint64_t bytes_;
  const bool dynamic_;
  int width_ = kLeast;
  int taken_ = 0;         // of this epoch, since it was made wider
  uint64_t largest_ = 0;  // bytes of a share
  int64_t step_ns_ = -1;  // less than 0: nobody knows
};

}  // namespace hvdata
