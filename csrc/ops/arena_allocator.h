// SPDX-License-Identifier: Apache-2.0
// Has the pipeline make its batches where the trainers of the host can see them.
#pragma once

#include <memory>

#include "arena/arena.h"
#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

// Memory from `arena`, which is this process's only one; for small tensors, and when there is no room, TensorFlow's own.
// Never waits. Lives as long as the process, as tensors may.
tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena);

}  // namespace hvdata
