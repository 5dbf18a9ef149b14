// SPDX-License-Identifier: Apache-2.0
#include "base/interrupts.h"

#include <csignal>

#include <atomic>

#include "base/mutex.h"

namespace hvdata {
namespace {

std::atomic<uint64_t> interrupts{0};

// A handler that ours was put in front of. Never freed, because a signal may be just calling it.
struct Before {
  struct sigaction action;
  const Before* earlier;
};
std::atomic<const Before*> before{nullptr};  // set before our handler is installed

void Count(int signal, siginfo_t* info, void* context) {
  // A handler that chains to ours, and was then found in front of it, comes back here: once is enough.
  static thread_local volatile sig_atomic_t inside = 0;
  if (inside) return;
  inside = 1;
  interrupts.fetch_add(1, std::memory_order_relaxed);
  const struct sigaction& next = before.load(std::memory_order_acquire)->action;
  if (next.sa_flags & SA_SIGINFO) {
    next.sa_sigaction(signal, info, context);
  } else if (next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN) {
    next.sa_handler(signal);
  }
  inside = 0;
}

}  // namespace

uint64_t Interrupts() { return interrupts.load(std::memory_order_relaxed); }

uint64_t WatchInterrupts() {
  static Mutex mu(Mutex::kLast);  // of whoever is installing it
  MutexLock lock(&mu);
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0) return Interrupts();
  const bool ours = (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == Count;
  const bool plain = !(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
  if (!ours && !plain) {
    before.store(new Before{now, before.load()}, std::memory_order_release);
    struct sigaction count = now;
    count.sa_flags |= SA_SIGINFO;
    count.sa_sigaction = Count;
    sigaction(SIGINT, &count, nullptr);
  }
  return Interrupts();
}

}  // namespace hvdata
