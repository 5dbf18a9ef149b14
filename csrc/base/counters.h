// SPDX-License-Identifier: Apache-2.0
// Counts what this process has sent and received, by way. Tests use the counts to prove that no batch is copied without
// need.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvdata {

// Each counter has its name here and its name in Python (Engine::Stats).
#define HVDATA_COUNTERS(COUNTER)                                                                              \
  /* Sent or received by MPI: headers with their inline payloads, and payload messages. */                    \
  COUNTER(messages_sent, "mpi_messages_sent")                                                                 \
  COUNTER(bytes_sent, "mpi_bytes_sent")                                                                       \
  COUNTER(messages_received, "mpi_messages_received")                                                         \
  COUNTER(bytes_received, "mpi_bytes_received")                                                               \
  COUNTER(bags_sent, "mpi_bags_sent")      /* the messages that are envelopes with several headers */         \
  COUNTER(bagged, "mpi_headers_in_bags")   /* headers in these envelopes */                                   \
  COUNTER(passed_on, "mpi_bags_passed_on") /* envelopes that this porter has put into rings of other ranks */ \
  /* On the sender. */                                                                                        \
  COUNTER(sent_inline, "payload_bytes_inline")   /* copied into a header message */                           \
  COUNTER(sent_arena, "payload_bytes_arena")     /* not copied: the receiver's tensor uses the same memory */ \
  COUNTER(sent_message, "payload_bytes_message") /* sent by MPI from the tensor's memory */                   \
  COUNTER(copied_to_arena, "payload_bytes_copied_to_arena") /* including our own share */                     \
  COUNTER(padded, "payload_bytes_padded")                   /* copied because the share has padding */        \
  /* On the receiver. */                                                                                      \
  COUNTER(realigned, "payload_bytes_realigned")  /* copied because the memory was not aligned */              \
  COUNTER(ring_full, "records_beside_full_ring") /* sent by MPI because the ring to the peer was full */

struct Counters {
#define HVDATA_COUNTER(name, shown) std::atomic<uint64_t> name{0};  // NOLINT(bugprone-macro-parentheses): it declares
  HVDATA_COUNTERS(HVDATA_COUNTER)
};

// Defined in one file, because a variable of a header would exist in each of our two libraries.
extern Counters counters;

inline Counters& Count() { return counters; }

inline void Add(std::atomic<uint64_t>* counter, uint64_t n) { counter->fetch_add(n, std::memory_order_relaxed); }

}  // namespace hvdata
