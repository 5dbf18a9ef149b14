// SPDX-License-Identifier: Apache-2.0
// A bell is a counter in shared memory, with a futex. A thread sleeps at the bell until another thread of the host
// rings it. Ringing needs no system call while no thread sleeps.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace hvdata {

struct Bell {
  alignas(64) std::atomic<uint32_t> rung{0};
  std::atomic<uint32_t> sleepers{0};

  // Each side writes its own word and then reads the other side's word. So at least one side sees the other's write.
  // That needs sequential consistency, the default order.
  void Ring() {
    rung.fetch_add(1);
    if (sleepers.load() > 0) Futex(FUTEX_WAKE, INT_MAX, nullptr);
  }
  // `seen`: the value of `rung` that the caller has read. Sleeps until a later ring, or for `most`. May return early.
  void Sleep(uint32_t seen, std::chrono::nanoseconds most) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec timeout{static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
    sleepers.fetch_add(1);
    if (rung.load() == seen) Futex(FUTEX_WAIT, seen, &timeout);
    sleepers.fetch_sub(1);
  }

 private:
  // Without FUTEX_PRIVATE, because the other side may be another process.
  void Futex(int operation, uint32_t value, const timespec* timeout) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rung), operation, value, timeout, nullptr, 0);
  }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

}  // namespace hvdata
