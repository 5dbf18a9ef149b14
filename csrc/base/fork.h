// SPDX-License-Identifier: Apache-2.0
// A forked child of a process of the job does not belong to the job. It has none of its parent's threads, and must not change the
// memory that they share.
#pragma once

namespace hvdata {

// From now on InForkedChild() knows. `in_child`: called in each child; only one function is ever given.
void WatchForks(void (*in_child)() = nullptr);

// True in a forked child of a process that had called WatchForks().
bool InForkedChild();

}  // namespace hvdata
