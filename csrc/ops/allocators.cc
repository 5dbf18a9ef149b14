// SPDX-License-Identifier: Apache-2.0
#include "ops/allocators.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <string>

#include "base/fork.h"
#include "base/mutex.h"

namespace hvdata {
namespace {

// A smaller tensor is copied into the header's message, which costs less.
constexpr size_t kLeastShared = 16 << 10;

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

// For tensors of this size or more, TensorFlow's builds with oneDNN keep freed memory, and retry for ten seconds before
// they fail.
constexpr size_t kLeastRecycled = 256 << 10;
constexpr size_t kRounding = 64 << 10;  // batches of similar sizes share buffers
constexpr size_t kAlignment = 4096;

// A forked child gets plain memory, and keeps no buffers. A thread that the child does not have may hold the lock for
// ever.
class RecyclingAllocator : public tensorflow::Allocator {
 public:
  std::string Name() override { return "horovod_data_receive"; }

  void* AllocateRaw(size_t, size_t bytes) override {
    const size_t size = (bytes + kRounding - 1) / kRounding * kRounding;
    if (InForkedChild()) return std::aligned_alloc(kAlignment, size);
    MutexLock lock(&mu_);
    // A buffer that is up to a quarter too large is used, too.
    const auto found = kept_.lower_bound(size);
    void* memory = nullptr;
    if (found != kept_.end() && found->first <= size + size / 4) {
      memory = found->second;
      kept_bytes_ -= found->first;
      kept_.erase(found);
    } else {
      Shrink(size);
      lock.Unlock();
      memory = std::aligned_alloc(kAlignment, size);
      lock.Lock();
      if (memory == nullptr) return nullptr;
    }
    in_use_ += malloc_usable_size(memory);
    peak_ = std::max(peak_, in_use_);
    return memory;
  }

  void DeallocateRaw(void* memory) override {
    if (InForkedChild()) return std::free(memory);
    MutexLock lock(&mu_);
    const size_t size = malloc_usable_size(memory);
    in_use_ -= size;
    try {
      kept_.emplace(size, memory);
      kept_bytes_ += size;
    } catch (const std::bad_alloc&) {  // the caller may be a destructor
      std::free(memory);
    }
    Shrink(0);
  }

 private:
  // Frees kept buffers until `wanted` more bytes fit in. The buffers in use and the kept ones together stay within the
  // peak of the buffers in use.
  void Shrink(size_t wanted) REQUIRES(mu_) {
    while (!kept_.empty() && in_use_ + wanted + kept_bytes_ > std::max(peak_, in_use_ + wanted)) {
      const auto smallest = kept_.begin();
      kept_bytes_ -= smallest->first;
      std::free(smallest->second);
      kept_.erase(smallest);
    }
  }

  Mutex mu_{Mutex::kLast};
  std::multimap<size_t, void*> kept_ GUARDED_BY(mu_);  // by size
  size_t in_use_ GUARDED_BY(mu_) = 0, kept_bytes_ GUARDED_BY(mu_) = 0, peak_ GUARDED_BY(mu_) = 0;
};

}  // namespace

tensorflow::Allocator* ArenaAllocator(const std::shared_ptr<Arena>& arena) {
  static auto* const allocator = new SharedAllocator(arena);
  return allocator;
}

tensorflow::Allocator* ReceiveAllocator(uint64_t bytes) {
  static RecyclingAllocator* const recycling = new RecyclingAllocator;
  return bytes >= kLeastRecycled ? recycling : tensorflow::cpu_allocator();
}

}  // namespace hvdata
