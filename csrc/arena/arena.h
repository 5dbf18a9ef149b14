// SPDX-License-Identifier: Apache-2.0
// Memory that one process, the lender, shares with trainers of its host. The lender is a reader or a porter. Only the
// lender allocates. No call waits for another process.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/heap.h"
#include "arena/region.h"
#include "arena/segment.h"
#include "base/mutex.h"

namespace hvdata {

class Arena {
 public:
  // Makes an arena with `bytes` for batches, and rings for `peers` other processes. Null: the system refuses.
  static std::shared_ptr<Arena> Create(uint64_t bytes, uint32_t peers, std::string* why);

  const Segment& segment() const { return segment_; }
  int fd() const { return region_->fd(); }
  RingPair* Rings(uint32_t peer) const { return segment_.RingsIn(region_->data(), peer); }

  // Tensors that the reader's pipeline still uses get at most half of the arena. So large buffers and caches in the
  // pipeline leave room for copies.
  enum class For { kPipeline, kCopy };

  // Returns memory, aligned to 256 bytes, that the caller uses until Free. Null: there is no room.
  char* Allocate(uint64_t bytes, For purpose);
  // Ends the caller's use. Trainers may use the memory longer. Does nothing in a forked child.
  void Free(const char* memory);

  bool Contains(const char* memory) const { return memory >= data_ && memory < data_ + segment_.arena; }

  struct Location {
    uint32_t slot;
    uint64_t offset;
  };
  // Adds a trainer's use of the slot of `memory`. Returns nothing if `memory` is not in this arena.
  std::optional<Location> Share(const char* memory);

  struct Usage {
    uint64_t taken = 0;            // bytes in used slots
    uint64_t reserved = 0;         // bytes that the kernel has set aside
    uint64_t refused = 0;          // allocations that found no room
    bool short_of_memory = false;  // the kernel refused the last request
    bool retired = false;
  };
  Usage Read();

  // Gives the memory behind the last used slot back to the system.
  void Trim();
  // Allocates no more, and gives the memory of free slots back to the system. Later calls, and Free(), also give back
  // the memory that trainers have freed meanwhile.
  void Retire();

 private:
  struct Piece {
    uint64_t size;
    uint32_t slot;
    bool held;  // allocated by the pipeline, and the reader still uses it
  };
  using Pieces = std::map<uint64_t, Piece>;

  Arena(const Segment& segment, std::shared_ptr<Region> region);

  Pieces::iterator FindLocked(const char* memory) REQUIRES(mu_);
  void CollectLocked() REQUIRES(mu_);
  bool ReserveLocked(uint64_t end) REQUIRES(mu_);

  const Segment segment_;
  const std::shared_ptr<Region> region_;
  char* const data_;
  Slots* const slots_;

  Mutex mu_{Mutex::kLast};
  Heap heap_ GUARDED_BY(mu_);
  Pieces pieces_ GUARDED_BY(mu_);                     // taken pieces, by offset
  std::vector<uint64_t> offset_of_ GUARDED_BY(mu_);   // by slot
  std::vector<uint32_t> free_slots_ GUARDED_BY(mu_);  // used earlier, and free now
  uint64_t held_ GUARDED_BY(mu_) = 0;
  Usage usage_ GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point asked_ GUARDED_BY(mu_);  // when the kernel last refused memory
};

// The arena of another process, mapped into a trainer.
class ArenaView : public std::enable_shared_from_this<ArenaView> {
 public:
  // Null: the memory can't be mapped.
  static std::shared_ptr<ArenaView> Attach(Descriptor fd, const Segment& segment, std::string* why);

  RingPair* Rings(uint32_t peer) const { return segment_.RingsIn(region_->data(), peer); }

  // Gives the address of `bytes` bytes at a place that the lender sent. The memory stays in use while a copy of `owner`
  // lives. Copies may outlive this view. False: the place is not in the arena.
  bool Adopt(const Arena::Location& place, uint64_t bytes, const char** data, std::shared_ptr<const void>* owner);

 private:
  ArenaView(const Segment& segment, std::shared_ptr<Region> region)
      : segment_(segment), region_(std::move(region)), slots_(segment.SlotsIn(region_->data())) {}

  const Segment segment_;
  const std::shared_ptr<Region> region_;
  Slots* const slots_;
};

}  // namespace hvdata
