// SPDX-License-Identifier: Apache-2.0
#include "base/interrupts.h"

#include <atomic>
#include <csignal>

#include "base/mutex.h"

namespace hvdata {
namespace {

std::atomic<uint64_t> interrupts{0};

// The handler that was installed before ours. It is never freed, because a signal may be calling it.
struct Before {
  struct sigaction action;
  const Before* earlier;
};
std::atomic<const Before*> before{nullptr};  // set before our handler is installed

// The earlier handler that OnInterrupt() runs on this thread now. Null: it runs none. The thread-local storage has the
// model initial-exec. With another model, the first access allocates memory if this library was loaded after the
// program's start. A signal handler must not allocate memory.
thread_local const Before* volatile running __attribute__((tls_model("initial-exec"))) = nullptr;

void OnInterrupt(int signal, siginfo_t* info, void* context) {
  // An earlier handler may call ours. Then ours runs twice for one signal. The second run does not count the signal. It
  // calls the handler that was installed before that earlier handler.
  const Before* const outer = running;
  if (outer == nullptr) interrupts.fetch_add(1, std::memory_order_relaxed);
  const Before* const next = outer == nullptr ? before.load(std::memory_order_acquire) : outer->earlier;
  if (next == nullptr) return;
  running = next;
  const struct sigaction& action = next->action;
  if (action.sa_flags & SA_SIGINFO) {
    action.sa_sigaction(signal, info, context);
  } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
    action.sa_handler(signal);
  }
  running = outer;
}

}  // namespace

uint64_t Interrupts() { return interrupts.load(std::memory_order_relaxed); }

uint64_t WatchInterrupts() {
  static Mutex mu(Mutex::kLast);
  MutexLock lock(&mu);
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0) return Interrupts();
  const bool ours = (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == OnInterrupt;
  const bool plain = !(now.sa_flags & SA_SIGINFO) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN);
  if (!ours && !plain) {
    before.store(new Before{now, before.load()}, std::memory_order_release);
    struct sigaction count = now;
    count.sa_flags |= SA_SIGINFO;
    count.sa_sigaction = OnInterrupt;
    sigaction(SIGINT, &count, nullptr);
  }
  return Interrupts();
}

}  // namespace hvdata
