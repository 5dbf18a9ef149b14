// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <thread>

namespace hvdata {

// Runs `body` on a thread of its own that nobody waits for. False, and nothing has been run, where the system has no more
// threads for this process, or no memory.
inline bool RunDetached(const std::function<void()>& body) noexcept {
  try {
    std::thread(body).detach();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace hvdata
