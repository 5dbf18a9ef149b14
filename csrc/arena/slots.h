// SPDX-License-Identifier: Apache-2.0
// Counts the uses of each piece of the arena, in shared memory. A slot without uses comes back to the lender by a list.
// No call waits, but trainers that return slots at the same moment may retry.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvdata {

class Slots {
 public:
  static constexpr uint32_t kCount = 1u << 18;

  // Memory that is all zeros means: no slot has uses, and the list is empty. The list stores slot numbers plus one, so
  // that 0 can mean its end.
  Slots() = default;

  void Begin(uint32_t slot) { slots_[slot].uses.store(1, std::memory_order_relaxed); }

  // Adds a use. The caller already has one.
  void Use(uint32_t slot) { slots_[slot].uses.fetch_add(1, std::memory_order_relaxed); }

  // The release order makes every read of the memory happen before the lender uses it again.
  void Drop(uint32_t slot) {
    if (slots_[slot].uses.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    uint32_t head = returned_.load(std::memory_order_relaxed);
    do {
      slots_[slot].next = head;
    } while (!returned_.compare_exchange_weak(head, slot + 1, std::memory_order_release, std::memory_order_relaxed));
  }

  // Calls visit(slot) for every slot that has come back. It takes the whole list at once, which avoids the ABA problem.
  template <typename Visitor>
  void TakeReturned(Visitor visit) {
    if (returned_.load(std::memory_order_relaxed) == 0) return;
    uint32_t at = returned_.exchange(0, std::memory_order_acquire);
    // `visit` may use the slot again. Other processes write this list, so its length and indexes are checked.
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
