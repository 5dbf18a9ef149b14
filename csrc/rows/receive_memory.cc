// SPDX-License-Identifier: Apache-2.0
#include "rows/receive_memory.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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
constexpr size_t kPage = 4096;

// A forked child gets plain memory, and keeps no buffers. A thread that the child does not have may hold the lock for
// ever.
class Buffers {
 public:
  // Null: there is no memory.
  void* Allocate(size_t bytes) {
    const size_t size = (bytes + kRounding - 1) / kRounding * kRounding;
    if (InForkedChild()) return std::aligned_alloc(kPage, size);
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
      memory = std::aligned_alloc(kPage, size);
      lock.Lock();
      if (memory == nullptr) return nullptr;
    }
    in_use_ += malloc_usable_size(memory);
    peak_ = std::max(peak_, in_use_);
    return memory;
  }

  void Free(void* memory) {
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

Block NewReceiveBlock(uint64_t bytes) {
  static auto* const buffers = new Buffers;  // batches may live longer than all statics
  if (bytes < kLeastRecycled || bytes > PTRDIFF_MAX) return NewBlock(bytes);
  void* const memory = buffers->Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<const char*>(memory), bytes,
          std::shared_ptr<void>(memory, [](void* used) { buffers->Free(used); })};
}

}  // namespace hvdata
