// SPDX-License-Identifier: Apache-2.0
// What has become of the payloads of this process, in bytes: the proof that nothing is copied that need not be.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvdata {

struct Counters {
  // On the sender.
  std::atomic<uint64_t> sent_inline{0};     // copied into a header message
  std::atomic<uint64_t> sent_arena{0};      // left where they lay: the receiver's tensor is that memory
  std::atomic<uint64_t> sent_message{0};    // sent by MPI from where they lay
  std::atomic<uint64_t> copied_to_arena{0}; // what the pipeline had made in other memory; our own share of it, too
  std::atomic<uint64_t> padded{0};          // copied into a share with padding, which is then where it is to be
  // On the receiver.
  std::atomic<uint64_t> realigned{0};       // copied because it began at an odd address
  std::atomic<uint64_t> ring_full{0};       // records that went by MPI because the ring to the peer was full
};

inline Counters& Count() {
  static Counters counters;
  return counters;
}

inline void Add(std::atomic<uint64_t>* counter, uint64_t n) { counter->fetch_add(n, std::memory_order_relaxed); }

}  // namespace hvdata
