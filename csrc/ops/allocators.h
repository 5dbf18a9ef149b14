// SPDX-License-Identifier: Apache-2.0
// Allocators for the tensors of this library: in shared memory, and for incoming batches. Both live as long as the
// process, because tensors may live that long.
#pragma once

#include <cstdint>
#include <memory>

#include "arena/arena.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

// For the pipeline's tensors: memory from `arena`, so that trainers of the host can map it. A process has only one
// arena. Small tensors get TensorFlow's own memory. All tensors do when the arena is full. Never waits.
tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena);

// The allocator for a received tensor of `bytes`. Fresh pages cost as much as the copy into them. So buffers of 256 KiB
// and more are used again. Used and kept buffers together never take more than the largest amount that was in use at
// one time. Smaller tensors get TensorFlow's own memory.
tensorflow::Allocator* ReceiveAllocator(uint64_t bytes);

}  // namespace hvdata
