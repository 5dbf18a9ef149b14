// SPDX-License-Identifier: Apache-2.0
#include "ops/arena_allocator.h"

#include <string>

namespace hvdata {
namespace {

// Below, a copy into a header message costs less than a slot.
constexpr size_t kSmallest = 16 << 10;

class Allocator : public tensorflow::Allocator {
 public:
  explicit Allocator(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  std::string Name() override { return "horovod_data_arena"; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (bytes >= kSmallest && alignment <= Heap::kAlignment) {
      if (void* const memory = arena_->Allocate(bytes, Arena::For::kPipeline)) return memory;
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
  static auto* const allocator = new Allocator(arena);
  return allocator;
}

}  // namespace hvdata
