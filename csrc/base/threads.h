// SPDX-License-Identifier: Apache-2.0
// Starts threads of this library.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <functional>
#include <thread>

namespace hvdata {

// Runs `body` on a new thread, without waiting for it. False: the system has no thread or no memory for it.
inline bool RunDetached(const std::function<void()>& body) noexcept {
  try {
    std::thread(body).detach();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Blocks signals in this thread, and in threads that it starts, so that handlers of the user's program don't run there.
// Signals of crashes are not blocked, because a blocked one ends the process without a trace.
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
