// SPDX-License-Identifier: Apache-2.0
// A forked child of a process of the job does not belong to the job. It has no threads of its parent. It must not
// change memory that it shares with its parent.
#pragma once

namespace hvdata {

// From now on InForkedChild() recognizes children. `in_child` runs in each child. Only one such function may ever be
// given.
void WatchForks(void (*in_child)() = nullptr);

// True in a forked child of a process that had called WatchForks().
bool InForkedChild();

}  // namespace hvdata
