// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "arena/arena.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

// The allocator for the pipeline's tensors: memory from `arena`, so that trainers of the host can map it. A process has
// only one arena. Small tensors get TensorFlow's own memory. So do all tensors when the arena is full. The allocator
// never waits. It lives as long as the process, because tensors may live that long.
tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena);

}  // namespace hvdata
