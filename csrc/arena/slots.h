// SPDX-License-Identifier: Apache-2.0
// Who still uses which piece of the arena: a counter for each slot, in shared memory, and the list by which slots that
// nobody uses any more come back to the reader. Wait-free for all but the rare trainers that return slots at once.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvdata {

class Slots {
 public:
  static constexpr uint32_t kCount = 1u << 18;

  // All zero is a good beginning: the list stores slot numbers plus one.
  Slots() = default;

  void Begin(uint32_t slot) { slots_[slot].uses.store(1, std::memory_order_relaxed); }

  // One more use, by somebody who holds one already.
  void Use(uint32_t slot) { slots_[slot].uses.fetch_add(1, std::memory_order_relaxed); }

  // The release order makes every read of the memory happen before the reader gives it to somebody else.
  void Drop(uint32_t slot) {
    if (slots_[slot].uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    uint32_t head = returned_.load(std::memory_order_relaxed);
    do {
      slots_[slot].next = head;
    } while (!returned_.compare_exchange_weak(head, slot + 1, std::memory_order_release, std::memory_order_relaxed));
  }

  // The reader alone: visit(slot) for every slot that has come back. The list is taken as a whole, so that no slot can be
  // taken and come back between two looks at its head (the ABA problem).
  template <typename Visitor>
  void TakeReturned(Visitor visit) {
    if (returned_.load(std::memory_order_relaxed) == 0) return;
    uint32_t at = returned_.exchange(0, std::memory_order_acquire);
    // `visit` may put the slot to use again. What another process wrote is not believed: no endless list, no wild index.
    for (uint32_t most = kCount; at != 0 && at <= kCount && most > 0; --most) {
      const uint32_t slot = at - 1;
      at = slots_[slot].next;
      visit(slot);
    }
  }

 private:
  struct Slot {
    std::atomic<uint32_t> uses;
    uint32_t next;
  };
  alignas(64) std::atomic<uint32_t> returned_;
  alignas(64) Slot slots_[kCount];
};

}  // namespace hvdata
