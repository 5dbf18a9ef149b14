// SPDX-License-Identifier: Apache-2.0
// A condition variable that other processes of the host can notify. The waiting thread fetches messages before it
// sleeps, so a share reaches it without another thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "arena/bell.h"
#include "base/mutex.h"
#include "wire/coordinates.h"

namespace hvdata {

// A bell at which a channel's waiting threads sleep, and functions that fetch messages. By default the bell is new, and
// there is nothing to fetch.
struct Doorbell {
  std::shared_ptr<Bell> bell = std::make_shared<Bell>();
  // Post::Fetch and Post::FetchAll. Call them with no lock held.
  std::function<bool()> fetch = [] { return false; };
  std::function<void()> fetch_all = [] {};
  // From now on a TAKEN rings the bell only if it is from `member`, and its limit is `limit` or more. kEverybody: every
  // TAKEN rings the bell. Other messages always do.
  std::function<void(int member, LaneStep limit)> attend;
  static constexpr int kEverybody = -1;
};

class Signal {
 public:
  explicit Signal(Doorbell door = {}) : door_(std::move(door)) {}

  void NotifyAll() { door_.bell->Ring(); }
  void Fetch() const { door_.fetch(); }
  void FetchAll() const { door_.fetch_all(); }
  // Call Attend in ready() of a wait. Then the thread fetches messages that did not ring, before it sleeps. Hold the
  // mutex of the waiting thread during calls of Attend and WokenBy.
  void Attend(int member, LaneStep limit) {
    const std::pair<int, uint64_t> whom{member, limit.n};
    if (!door_.attend || std::exchange(attended_, whom) == whom) return;
    door_.attend(member, limit);
  }
  // True if a message with this limit from this member wakes the waiting thread.
  bool WokenBy(int member, LaneStep limit) const { return attended_.first == member && attended_.second <= limit.n; }

  // Waits until ready() is true, or for `most`. `lock` is held during ready(). Returns the last result of ready().
  template <typename Ready>
  bool WaitFor(MutexLock* lock, std::chrono::nanoseconds most, Ready ready) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    for (;;) {
      const uint32_t seen = door_.bell->rung.load();  // a later ring ends the sleep
      if (ready()) return true;
      lock->Unlock();
      const bool news = door_.fetch();
      const auto left = deadline - std::chrono::steady_clock::now();
      if (!news && left > std::chrono::nanoseconds::zero()) door_.bell->Sleep(seen, left);
      lock->Lock();
      if (left <= std::chrono::nanoseconds::zero()) return ready();
    }
  }

 private:
  const Doorbell door_;
  std::pair<int, uint64_t> attended_{Doorbell::kEverybody, 0};
};

}  // namespace hvdata
