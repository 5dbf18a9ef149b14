// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace hvdata {
namespace {

std::atomic<bool> forked{false};
std::atomic<void (*)()> hook{nullptr};

void InChild() {
  forked = true;
  if (hook != nullptr) hook.load()();
}

}  // namespace

void WatchForks(void (*in_child)()) {
  if (in_child != nullptr) hook = in_child;
  [[maybe_unused]] static const int installed = pthread_atfork(nullptr, nullptr, InChild);
}

bool InForkedChild() { return forked.load(std::memory_order_relaxed); }

}  // namespace hvdata
