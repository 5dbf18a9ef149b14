// SPDX-License-Identifier: Apache-2.0
// Allocators for the tensors of this library: in shared memory, and for batches that come in. Both live as long as the process,
// because tensors may.
#pragma once

#include <cstdint>
#include <memory>

#include "arena/arena.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

// For the pipeline's tensors: memory from `arena`, this process's only one, so that trainers of the host can map it. Small tensors, and
// all when the arena is full, get TensorFlow's own memory. Never waits.
tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena);

// The allocator for a received tensor of `bytes`. Fresh pages cost as much as the copy into them. So buffers of 256 KiB and more are
// used again; used and kept buffers together never take more than was in use at one time. Smaller ones get TensorFlow's own memory.
tensorflow::Allocator* ReceiveAllocator(uint64_t bytes);

}  // namespace hvdata
