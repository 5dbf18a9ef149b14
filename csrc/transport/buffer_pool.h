// SPDX-License-Identifier: Apache-2.0
// Recycled memory for header messages.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "mail/placement.h"

namespace hvdata {

class BufferPool {
 public:
  using Buffer = std::unique_ptr<char[]>;

  Buffer Take(size_t size) {
    if (size > kRecycled || free_.empty()) return Buffer(new char[size > kRecycled ? size : kRecycled]);
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  // `size` as it was in Take().
  void Give(Buffer buffer, size_t size) {
    if (size <= kRecycled && free_.size() < kMost) free_.push_back(std::move(buffer));
  }

 private:
  static constexpr size_t kRecycled = 2 * kInlineLimit;  // a full load of inline payloads and a common header
  static constexpr size_t kMost = 64;
  std::vector<Buffer> free_;
};

}  // namespace hvdata
