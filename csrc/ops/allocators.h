// SPDX-License-Identifier: Apache-2.0
// Memory for tensors that we have made: where others can see it, and where batches come in. Both allocators live as long as
// the process, as tensors may.
#pragma once

#include <cstdint>
#include <memory>

#include "arena/arena.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

// Has the pipeline make its batches where the trainers of the host can see them: memory from `arena`, which is this
// process's only one; for small tensors, and when there is no room, TensorFlow's own. Never waits.
tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena);

// The allocator to receive `bytes` into. Fresh pages cost as much as the copy into them, so large buffers are used again: a
// recycling one for 256 KiB and more, TensorFlow's own below. The recycling one never holds more than the most that was in use
// at one time.
tensorflow::Allocator* ReceiveAllocator(uint64_t bytes);

}  // namespace hvdata
