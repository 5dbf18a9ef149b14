// SPDX-License-Identifier: Apache-2.0
// Memory for batches that come in. Fresh pages cost as much as the copy into them, so large buffers are used again.
#pragma once

#include <cstdint>

#include "tensorflow/core/framework/allocator.h"

namespace hvdata {

// The allocator to receive `bytes` into: a recycling one for 1 MiB and more, TensorFlow's own below. The recycling one
// never holds more than the most that was in use at one time.
tensorflow::Allocator* ReceiveAllocator(uint64_t bytes);

}  // namespace hvdata
