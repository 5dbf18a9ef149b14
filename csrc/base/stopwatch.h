// SPDX-License-Identifier: Apache-2.0
// Measures how long a thread does each activity. Every moment counts for one activity, so the sums give the whole time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace hvdata {

// The steady clock, in nanoseconds.
inline int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// `What`: an enum of activities from 0 to kCount. Any thread may call these functions.
template <typename What>
class Stopwatch {
 public:
  static constexpr auto kThings = static_cast<size_t>(What::kCount);
  using Sums = std::array<int64_t, kThings>;  // nanoseconds

  // One period with one activity, by the steady clock.
  struct Lap {
    What what;
    int64_t begin, end;
    int64_t spent() const { return end - begin; }
  };

  // Starts activity `what`. Returns the lap that ends now.
  Lap TurnTo(What what) {
    const std::lock_guard<std::mutex> lock(mu_);
    const Lap lap{doing_, since_, SteadyNow()};
    sums_[static_cast<size_t>(doing_)] += lap.spent();
    doing_ = what;
    since_ = lap.end;
    return lap;
  }

  // The current lap, with now as its end.
  Lap UnderWay() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return {doing_, since_, SteadyNow()};
  }

  // The sums up to now. `reset`: they begin again at zero, also that of the current lap.
  Sums Read(bool reset = false) {
    const std::lock_guard<std::mutex> lock(mu_);
    const int64_t lap = SteadyNow() - since_;
    Sums sums = sums_;
    sums[static_cast<size_t>(doing_)] += lap;
    if (reset) sums_ = {}, sums_[static_cast<size_t>(doing_)] = -lap;
    return sums;
  }

 private:
  // A plain std::mutex. It has no place in the order of base/mutex.h, because it is held for a few instructions only.
  mutable std::mutex mu_;
  Sums sums_{};
  What doing_{};
  int64_t since_ = SteadyNow();
};

}  // namespace hvdata
