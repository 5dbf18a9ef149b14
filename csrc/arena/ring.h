// SPDX-License-Identifier: Apache-2.0
// A queue of records in shared memory, from one process to another process of its host. No call waits for the other
// process.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace hvdata {

enum class RingTaken { kNone, kOne, kBroken };

template <uint32_t kBytes>
class Ring {
 public:
  static_assert((kBytes & (kBytes - 1)) == 0, "a power of two");
  static constexpr uint32_t kMostInRecord = kBytes / 4;

  // Memory of zeros is an empty ring.
  Ring() = default;

  // Appends `parts`, joined, as one record. False: the ring has no room now, or the record is too long for any ring.
  bool Put(const std::vector<std::string_view>& parts) {
    uint64_t size = 0;
    for (const std::string_view part : parts) size += part.size();
    if (size > kMostInRecord) return false;
    const uint32_t needed = Padded(static_cast<uint32_t>(size));
    uint64_t end = end_.load(std::memory_order_relaxed);
    const uint32_t room_to_edge = kBytes - At(end);
    const uint32_t skipped = needed > room_to_edge ? room_to_edge : 0;  // records are contiguous
    if (end + skipped + needed - begin_.load(std::memory_order_acquire) > kBytes) return false;
    if (skipped > 0) Length(end, kSkip);
    end += skipped;
    Length(end, static_cast<uint32_t>(size));
    char* to = bytes_ + At(end) + sizeof(uint32_t);
    for (const std::string_view part : parts) {
      if (!part.empty()) std::memcpy(to, part.data(), part.size());
      to += part.size();
    }
    end_.store(end + needed, std::memory_order_release);
    return true;
  }

  bool Empty() const { return begin_.load(std::memory_order_relaxed) == end_.load(std::memory_order_acquire); }

  using Taken = RingTaken;

  // Calls visit(record) with the oldest record, which the writer may overwrite afterwards. kBroken: the ring's contents
  // are not valid.
  template <typename Visitor>
  Taken Take(Visitor visit) {
    uint64_t begin = begin_.load(std::memory_order_relaxed);
    const uint64_t end = end_.load(std::memory_order_acquire);
    if (begin == end) return Taken::kNone;
    if (end - begin > kBytes) return Taken::kBroken;
    if (Length(begin) == kSkip) begin += kBytes - At(begin);
    const uint32_t size = Length(begin);
    if (size > kMostInRecord || Padded(size) > kBytes - At(begin) || begin + Padded(size) > end) return Taken::kBroken;
    visit(std::string_view(bytes_ + At(begin) + sizeof(uint32_t), size));
    begin_.store(begin + Padded(size), std::memory_order_release);
    return Taken::kOne;
  }

 private:
  static constexpr uint32_t kSkip = ~0u;
  static uint32_t At(uint64_t position) { return static_cast<uint32_t>(position) & (kBytes - 1); }
  static uint32_t Padded(uint32_t size) { return (size + static_cast<uint32_t>(sizeof size) + 7) / 8 * 8; }
  void Length(uint64_t position, uint32_t length) { std::memcpy(bytes_ + At(position), &length, sizeof length); }
  uint32_t Length(uint64_t position) const {
    uint32_t length;
    std::memcpy(&length, bytes_ + At(position), sizeof length);
    return length;
  }

  // Bytes ever read and ever written, each on a cache line of its own.
  alignas(64) std::atomic<uint64_t> begin_;
  alignas(64) std::atomic<uint64_t> end_;
  alignas(64) char bytes_[kBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace hvdata
