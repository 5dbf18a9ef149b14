// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace hvdata {

// Returns different numbers in all processes and runs. Opens no file, because the process may be at its limit of files.
inline uint64_t RandomNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) == static_cast<ssize_t>(sizeof(number))) return number;
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return (now ^ static_cast<uint64_t>(getpid()) << 40) * 0x9E3779B97F4A7C15ull;  // the system has no random bytes
}

}  // namespace hvdata
