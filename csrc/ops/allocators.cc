// SPDX-License-Identifier: Apache-2.0
#include "ops/allocators.h"

#include <new>
#include <string>

#include "rows/column.h"

namespace hvdata {
namespace {

class SharedAllocator : public tensorflow::Allocator {
 public:
  explicit SharedAllocator(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  std::string Name() override { return "horovod_data_arena"; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (bytes >= kLeastShared && alignment <= Heap::kAlignment) {
      try {
        if (void* const memory = arena_->Allocate(bytes, Arena::For::kPipeline)) return memory;
      } catch (const std::bad_alloc&) {  // the arena's bookkeeping may throw; TensorFlow expects no exception
      }
    }
    return tensorflow::cpu_allocator()->AllocateRaw(alignment, bytes);
  }

  void DeallocateRaw(void* memory) override {
    if (arena_->Contains(static_cast<const char*>(memory))) {
      arena_->Free(static_cast<const char*>(memory));
    } else {
      tensorflow::cpu_allocator()->DeallocateRaw(memory);
    }
  }

 private:
  const std::shared_ptr<Arena> arena_;
};

}  // namespace

tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena) {
  static auto* const allocator = new SharedAllocator(arena);
  return allocator;
}

}  // namespace hvdata
