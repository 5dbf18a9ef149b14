// SPDX-License-Identifier: Apache-2.0
// Counters that the communication thread writes and anybody reads.
#pragma once

#include <atomic>
#include <cstdint>

#include "transport/transport.h"

namespace hvdata {

class Traffic {
 public:
  void Sent(uint64_t bytes) { sent_.Add(bytes); }
  void Received(uint64_t bytes) { received_.Add(bytes); }
  TransportStats Read() const {
    return {sent_.messages.load(std::memory_order_relaxed), sent_.bytes.load(std::memory_order_relaxed),
            received_.messages.load(std::memory_order_relaxed), received_.bytes.load(std::memory_order_relaxed)};
  }

 private:
  struct Direction {
    void Add(uint64_t n) {
      messages.fetch_add(1, std::memory_order_relaxed);
      bytes.fetch_add(n, std::memory_order_relaxed);
    }
    std::atomic<uint64_t> messages{0}, bytes{0};
  };
  Direction sent_, received_;
};

}  // namespace hvdata
