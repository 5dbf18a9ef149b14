// SPDX-License-Identifier: Apache-2.0
// Measures how long a thread does each activity. Every moment counts for exactly one activity. So the sums add up to
// the elapsed time.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace hvdata {

// The steady clock, in nanoseconds.
inline int64_t SteadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// `What` is an enum of activities. Its first value, 0, is not counted. Its last value is kCount. Only one thread at a
// time may call TurnTo. Any thread may read. A call of TurnTo reads the clock once and takes no lock.
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
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1);  // before the clock is read, so that no reader counts time after that moment
    const size_t doing = doing_.load(std::memory_order_relaxed);
    const Lap lap{static_cast<What>(doing), since_.load(std::memory_order_relaxed), SteadyNow()};
    std::atomic<int64_t>& sum = sums_[doing];
    sum.store(sum.load(std::memory_order_relaxed) + lap.spent(), std::memory_order_release);
    doing_.store(static_cast<size_t>(what), std::memory_order_release);
    since_.store(lap.end, std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
    return lap;
  }

  // The current lap, with a recent moment as its end.
  Lap UnderWay() const {
    Lap lap{};
    for (int i = 0; i < kTries; ++i) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      lap.what = static_cast<What>(doing_.load(std::memory_order_acquire));
      lap.begin = since_.load(std::memory_order_acquire);
      lap.end = SteadyNow();
      if (before % 2 == 0 && version_.load() == before) break;
      LetTurn(i);
    }
    return lap;
  }

  // The sums up to now.
  Sums Read() const {
    Sums sums{};
    for (int i = 0; i < kTries; ++i) {
      const uint64_t before = version_.load(std::memory_order_acquire);
      for (size_t k = 0; k < kThings; ++k) sums[k] = sums_[k].load(std::memory_order_acquire);
      const size_t doing = doing_.load(std::memory_order_acquire);
      sums[doing] += SteadyNow() - since_.load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) break;
      LetTurn(i);
    }
    return sums;
  }

 private:
  // After so many tries, which take microseconds, a reader sleeps. A thread in the middle of TurnTo may need the
  // reader's processor.
  static constexpr int kTriesAtOnce = 1000;
  static constexpr int kTries = 1000 * kTriesAtOnce;  // then a reader gives up

  static void LetTurn(int tried) {
    if (tried % kTriesAtOnce == kTriesAtOnce - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::atomic<uint64_t> version_{0};  // odd: a call of TurnTo is running
  std::array<std::atomic<int64_t>, kThings> sums_{};
  std::atomic<size_t> doing_{0};
  std::atomic<int64_t> since_{SteadyNow()};
};

}  // namespace hvdata
