// SPDX-License-Identifier: Apache-2.0
// A forked child does not belong to the job. It has no threads of its parent, and must not change memory that it shares
// with its parent.
#pragma once

#include <pthread.h>

#include <atomic>

namespace hvdata {

inline std::atomic<bool> forked{false};
inline std::atomic<void (*)()> in_forked_child{nullptr};

// From now on InForkedChild() recognizes children, and `in_child` runs in each child. Only one such function may ever be
// given.
inline void WatchForks(void (*in_child)() = nullptr) {
  if (in_child != nullptr) in_forked_child = in_child;
  [[maybe_unused]] static const int installed = pthread_atfork(nullptr, nullptr, [] {
    forked = true;
    if (in_forked_child != nullptr) in_forked_child.load()();
  });
}

// True in a forked child of a process that had called WatchForks().
inline bool InForkedChild() { return forked.load(std::memory_order_relaxed); }

}  // namespace hvdata
