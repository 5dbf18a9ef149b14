// SPDX-License-Identifier: Apache-2.0
// The free parts of the arena, by offset. It never touches the memory itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace hvdata {

// Takes the smallest part that fits, and of several such parts the first one. Free neighbours become one part. So
// batches of one size, the common case, fit exactly where earlier ones were. The far end of the arena is used last.
class Heap {
 public:
  static constexpr uint64_t kAlignment = 256;

  explicit Heap(uint64_t size) { Insert(0, size / kAlignment * kAlignment); }

  static uint64_t Rounded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Takes `bytes` bytes (a multiple of kAlignment, more than 0) and returns their offset.
  std::optional<uint64_t> Take(uint64_t bytes) {
    const auto found = by_size_.lower_bound({bytes, 0});
    if (found == by_size_.end()) return std::nullopt;
    const auto [size, offset] = *found;
    by_size_.erase(found);
    free_.erase(offset);
    if (size > bytes) Insert(offset + bytes, size - bytes);
    return offset;
  }

  void Give(uint64_t offset, uint64_t bytes) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && next->first == offset + bytes) {
      bytes += next->second;
      next = Remove(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        Remove(before);
      }
    }
    Insert(offset, bytes);
  }

  // Free pieces by offset.
  const std::map<uint64_t, uint64_t>& Free() const { return free_; }

 private:
  using Pieces = std::map<uint64_t, uint64_t>;

  void Insert(uint64_t offset, uint64_t size) {
    if (size == 0) return;
    free_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }
  Pieces::iterator Remove(Pieces::iterator piece) {
    by_size_.erase({piece->second, piece->first});
    return free_.erase(piece);
  }

  Pieces free_;
  std::set<std::pair<uint64_t, uint64_t>> by_size_;
};

}  // namespace hvdata
