// SPDX-License-Identifier: Apache-2.0
// Keeps the offsets of the arena's free pieces. Never touches the memory itself.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace hvdata {

// Take() uses the smallest free piece that fits, or the first of several such pieces. Give() joins free neighbours. So
// a batch fits exactly where an earlier batch of its size was. The end of the arena is used last.
class Heap {
 public:
  static constexpr uint64_t kAlignment = 256;

  explicit Heap(uint64_t size) { Insert(0, size / kAlignment * kAlignment); }

  static uint64_t Rounded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  // Takes `bytes` bytes (a multiple of kAlignment, more than 0). Returns their offset, or nothing if no piece fits.
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

  // The sizes of the free pieces, by offset.
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
