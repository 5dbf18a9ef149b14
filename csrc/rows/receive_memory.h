// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "arena/arena.h"
#include "mail/share.h"

namespace hvdata {

// Memory for a received payload. Fresh pages cost as much as the copy into them. So buffers of 256 KiB and more are
// used again. Used and kept buffers together never take more than the largest amount that was in use at one time.
// std::bad_alloc: there is no memory.
Block NewReceiveBlock(uint64_t bytes);

// Gives memory that is free now back to the system: the kept buffers, the end of the arena (null: there is none), and
// malloc's. Call it after work whose batches had other sizes than those that follow.
void GiveBackFreeMemory(Arena* arena);

}  // namespace hvdata
