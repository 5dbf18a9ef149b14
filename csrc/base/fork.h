// SPDX-License-Identifier: Apache-2.0
// A child that was forked from a process of a job is none of its processes: it shares memory with its parent that it must not
// change, and has none of its threads.
#pragma once

namespace hvdata {

// From now on children know what they are. `in_child` runs in each, where it is given; at most one ever is.
void WatchForks(void (*in_child)() = nullptr);

// In a child of a process that had called WatchForks().
bool InForkedChild();

}  // namespace hvdata
