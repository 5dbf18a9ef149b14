// SPDX-License-Identifier: Apache-2.0
// A forked child does not belong to the job. It has no threads of its parent, and must not change memory that it shares
// with its parent.
#pragma once

#include <atomic>

namespace hvdata {

extern std::atomic<bool> forked;  // set in a child

// From now on InForkedChild() recognizes children, and `in_child` runs in each child. Only one such function may ever
// be given.
void WatchForks(void (*in_child)() = nullptr);

// True in a forked child of a process that had called WatchForks().
inline bool InForkedChild() { return forked.load(std::memory_order_relaxed); }

}  // namespace hvdata
