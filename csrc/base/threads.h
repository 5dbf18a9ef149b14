// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>
#include <signal.h>

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

// A thread inherits the signal mask of its maker. With these blocked no handler of the user's program runs on it, but those of
// crashes: where such a signal is blocked the process dies without a trace.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP}) sigdelset(&blocked, crash);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace hvdata
