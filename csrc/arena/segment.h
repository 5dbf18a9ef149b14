// SPDX-License-Identifier: Apache-2.0
// The layout of shared memory: the slots' counters | a pair of rings for each peer | batches
#pragma once

#include <atomic>
#include <cstdint>

#include "arena/ring.h"
#include "arena/slots.h"

namespace hvdata {

// DownRing carries shares, with small payloads, to the trainer. UpRing carries messages about them to the reader.
using DownRing = Ring<256 << 10>;
using UpRing = Ring<64 << 10>;

struct RingPair {
  static constexpr uint32_t kChannels = 32;  // channels c and c + 32 share bells

  DownRing down;
  UpRing up;
  // By channel: see HostLink::wake_at.
  alignas(64) std::atomic<uint64_t> wake_at[kChannels];
};

// The bytes of a Segment are sent as they are. So it has no gaps, which would contain other memory of the sender.
struct Segment {
  uint32_t peers = 0;
  uint32_t zero = 0;
  uint64_t arena = 0;  // bytes for batches

  static constexpr uint64_t kPage = 64 << 10;  // the largest page of a common machine

  uint64_t ArenaAt() const { return (sizeof(Slots) + peers * sizeof(RingPair) + kPage - 1) / kPage * kPage; }
  uint64_t Size() const { return ArenaAt() + arena; }

  Slots* SlotsIn(char* memory) const { return reinterpret_cast<Slots*>(memory); }
  RingPair* RingsIn(char* memory, uint32_t peer) const {
    return reinterpret_cast<RingPair*>(memory + sizeof(Slots)) + peer;
  }
};
static_assert(sizeof(Slots) % alignof(RingPair) == 0, "the rings follow the slots");

}  // namespace hvdata
