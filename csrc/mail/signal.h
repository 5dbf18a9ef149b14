// SPDX-License-Identifier: Apache-2.0
// A condition variable that other processes on the host can notify too, and whose waiting thread fetches what they have
// sent before it sleeps: so a share reaches the thread that waits for it without any other thread in between.
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

// What a channel's waiting threads listen to: a bell, and how to fetch what was sent. By default a bell of their own.
struct Doorbell {
  std::shared_ptr<Bell> bell = std::make_shared<Bell>();
  // Fetches and delivers; true if there was something. Called with no lock held, as `fetch_all`, which returns when all that had
  // come before has been delivered.
  std::function<bool()> fetch = [] { return false; };
  std::function<void()> fetch_all = [] {};
  // Of all those who take steps, only this member is worth being woken by for now, once it gives room up to step `limit`;
  // kEverybody: all are.
  std::function<void(int member, LaneStep limit)> attend;
  static constexpr int kEverybody = -1;
};

class Signal {
 public:
  explicit Signal(Doorbell door = {}) : door_(std::move(door)) {}

  void NotifyAll() { door_.bell->Ring(); }
  // See Doorbell.
  void Fetch() const { door_.fetch(); }
  void FetchAll() const { door_.fetch_all(); }
  // This and WokenBy: under the mutex of whoever waits. Called from ready() of a wait, so that what rang in vain is fetched before
  // the thread sleeps.
  void Attend(int member, LaneStep limit) {
    const std::pair<int, uint64_t> whom{member, limit.n};
    if (!door_.attend || std::exchange(attended_, whom) == whom) return;
    door_.attend(member, limit);
  }
  // Whether this is what the waiting thread attends to.
  bool WokenBy(int member, LaneStep limit) const { return attended_.first == member && attended_.second <= limit.n; }

  // Until ready(), which is called under `lock`, or for `most`; whether it was ready.
  template <typename Ready>
  bool WaitFor(MutexLock* lock, std::chrono::nanoseconds most, Ready ready) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    for (;;) {
      const uint32_t seen = door_.bell->rung.load();  // what comes after this look ends the sleep
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
