// SPDX-License-Identifier: Apache-2.0
#include "arena/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace hvdata {
namespace {

// Without FUTEX_PRIVATE, because the other side may be another process.
void Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

}  // namespace

// Each side writes its own word and then reads the other side's word. So at least one side sees the other's write. That
// needs sequential consistency, the default order.
void Bell::Ring() {
  rung.fetch_add(1);
  if (sleepers.load() > 0) Futex(&rung, FUTEX_WAKE, INT_MAX, nullptr);
}

void Bell::Sleep(uint32_t seen, std::chrono::nanoseconds most) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec timeout{static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count())};
  sleepers.fetch_add(1);
  if (rung.load() == seen) Futex(&rung, FUTEX_WAIT, seen, &timeout);
  sleepers.fetch_sub(1);
}

}  // namespace hvdata
