// SPDX-License-Identifier: Apache-2.0
// What this process has moved, and what has become of its payloads: the proof that nothing is copied that need not be.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvdata {

// By their names here and in Python (Engine::Stats).
#define HVDATA_COUNTERS(COUNTER)                                                                                       \
  /* Handed to MPI and by it: headers with their inline payloads, and payload messages. */                             \
  COUNTER(messages_sent, "mpi_messages_sent")                                                                          \
  COUNTER(bytes_sent, "mpi_bytes_sent")                                                                                \
  COUNTER(messages_received, "mpi_messages_received")                                                                  \
  COUNTER(bytes_received, "mpi_bytes_received")                                                                        \
  COUNTER(bags_sent, "mpi_bags_sent")      /* of these messages: several headers each, for one host */                 \
  COUNTER(bagged, "mpi_headers_in_bags")   /* how many were in them */                                                 \
  COUNTER(passed_on, "mpi_bags_passed_on") /* came here for other ranks of this host, who got them in shared memory */ \
  /* On the sender. */                                                                                                 \
  COUNTER(sent_inline, "payload_bytes_inline")              /* copied into a header message */                         \
  COUNTER(sent_arena, "payload_bytes_arena")                /* left there: the receiver's tensor is that memory */     \
  COUNTER(sent_message, "payload_bytes_message")            /* sent by MPI from where they lay */                      \
  COUNTER(copied_to_arena, "payload_bytes_copied_to_arena") /* made in other memory; our own share, too */             \
  COUNTER(padded, "payload_bytes_padded")                   /* copied into a share with padding, where it is to be */  \
  /* On the receiver. */                                                                                               \
  COUNTER(realigned, "payload_bytes_realigned")  /* copied because it began at an odd address */                       \
  COUNTER(ring_full, "records_beside_full_ring") /* went by MPI because the ring to the peer was full */

struct Counters {
#define HVDATA_COUNTER(name, shown) std::atomic<uint64_t> name{0};  // NOLINT(bugprone-macro-parentheses): it declares
  HVDATA_COUNTERS(HVDATA_COUNTER)
};

inline Counters& Count() {
  static Counters counters;
  return counters;
}

inline void Add(std::atomic<uint64_t>* counter, uint64_t n) { counter->fetch_add(n, std::memory_order_relaxed); }

}  // namespace hvdata
