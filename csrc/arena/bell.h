// SPDX-License-Identifier: Apache-2.0
// A thread sleeps at a bell until another thread of the host rings it. A bell is a counter in shared memory, with a
// futex. Ringing costs no system call while no thread sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace hvdata {

struct Bell {
  alignas(64) std::atomic<uint32_t> rung{0};
  std::atomic<uint32_t> sleepers{0};

  void Ring();
  // Sleeps until a ring that came after the caller had read `seen`, or for `most`. May return early.
  void Sleep(uint32_t seen, std::chrono::nanoseconds most);
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "shared between processes");

}  // namespace hvdata
