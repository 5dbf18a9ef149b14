// SPDX-License-Identifier: Apache-2.0
#include "rows/receive_memory.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <new>

#include "base/fork.h"
#include "base/mutex.h"
#include "rows/column.h"

namespace hvdata {
namespace {

constexpr size_t kLeastRecycled = 256 << 10;
constexpr size_t kRounding = 64 << 10;  // batches of similar sizes share buffers

// Maps memory for one buffer. malloc is not used, because it would keep the holes that buffers of several sizes leave.
// Null: there is no memory.
void* Map(size_t size) {
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// A forked child keeps no buffers, because it must not wait for the lock. A thread of the parent may have held the lock
// at the fork. The child does not have this thread, so nobody would release the lock.
class Buffers {
 public:
  struct Buffer {
    size_t size;
    void* memory;  // null: there is no memory
  };

  Buffer Allocate(size_t bytes) {
    const size_t size = (bytes + kRounding - 1) / kRounding * kRounding;
    if (InForkedChild()) return {size, Map(size)};
    MutexLock lock(&mu_);
    // A buffer that is up to a quarter too large is used, too.
    const auto found = kept_.lower_bound(size);
    Buffer buffer{size, nullptr};
    if (found != kept_.end() && found->first <= size + size / 4) {
      buffer = {found->first, found->second};
      kept_bytes_ -= buffer.size;
      kept_.erase(found);
    } else {
      Shrink(size);
      lock.Unlock();
      buffer.memory = Map(size);
      lock.Lock();
      if (buffer.memory == nullptr) return buffer;
    }
    in_use_ += buffer.size;
    peak_ = std::max(peak_, in_use_);
    return buffer;
  }

  void Free(const Buffer& buffer) {
    if (InForkedChild()) return (void)munmap(buffer.memory, buffer.size);
    MutexLock lock(&mu_);
    in_use_ -= buffer.size;
    try {
      kept_.emplace(buffer.size, buffer.memory);
      kept_bytes_ += buffer.size;
    } catch (const std::bad_alloc&) {  // the caller may be a destructor
      munmap(buffer.memory, buffer.size);
    }
    Shrink(0);
  }

  // Frees all kept buffers.
  void Clear() {
    MutexLock lock(&mu_);
    peak_ = in_use_;
    Shrink(0);
  }

 private:
  // Frees kept buffers until `wanted` more bytes fit in. The buffers in use and the kept ones together stay within the
  // peak of the buffers in use.
  void Shrink(size_t wanted) REQUIRES(mu_) {
    while (!kept_.empty() && in_use_ + wanted + kept_bytes_ > std::max(peak_, in_use_ + wanted)) {
      const auto smallest = kept_.begin();
      kept_bytes_ -= smallest->first;
      munmap(smallest->second, smallest->first);
      kept_.erase(smallest);
    }
  }

  Mutex mu_{Mutex::kLast};
  std::multimap<size_t, void*> kept_ GUARDED_BY(mu_);  // by size
  size_t in_use_ GUARDED_BY(mu_) = 0, kept_bytes_ GUARDED_BY(mu_) = 0, peak_ GUARDED_BY(mu_) = 0;
};

Buffers* All() {
  static auto* const buffers = new Buffers;  // batches may live longer than all statics
  return buffers;
}

}  // namespace

Block NewReceiveBlock(uint64_t bytes) {
  if (bytes < kLeastRecycled || bytes > PTRDIFF_MAX) return NewBlock(bytes);
  const Buffers::Buffer buffer = All()->Allocate(bytes);
  if (buffer.memory == nullptr) throw std::bad_alloc();
  return {static_cast<const char*>(buffer.memory), bytes,
          std::shared_ptr<void>(buffer.memory, [size = buffer.size](void* used) { All()->Free({size, used}); })};
}

void GiveBackFreeMemory(Arena* arena) {
  if (arena != nullptr) arena->Trim();
  All()->Clear();
  malloc_trim(0);
}

}  // namespace hvdata
