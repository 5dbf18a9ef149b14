// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace hvdata {

// The sizes of a tensor's axes. Most tensors have few axes, so a copy of their sizes allocates nothing.
class Dims {
 public:
  static constexpr size_t kFew = 4;

  Dims() = default;
  Dims(std::initializer_list<int64_t> sizes) : Dims(sizes.begin(), sizes.end()) {}
  Dims(const std::vector<int64_t>& sizes) : Dims(sizes.begin(), sizes.end()) {}  // NOLINT: both are lists of sizes
  template <typename Iterator>
  Dims(Iterator begin, Iterator end) {
    resize(static_cast<size_t>(end - begin));
    std::copy(begin, end, data());
  }

  size_t size() const { return many_.empty() ? few_count_ : many_.size(); }
  bool empty() const { return size() == 0; }
  int64_t* data() { return many_.empty() ? few_.data() : many_.data(); }
  const int64_t* data() const { return many_.empty() ? few_.data() : many_.data(); }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size(); }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size(); }
  int64_t& operator[](size_t axis) { return data()[axis]; }
  const int64_t& operator[](size_t axis) const { return data()[axis]; }

  // New sizes are 0.
  void resize(size_t count) {
    if (many_.empty() && count <= kFew) {
      for (; few_count_ < count; ++few_count_) few_[few_count_] = 0;
      few_count_ = count;
    } else {
      if (many_.empty()) many_.assign(begin(), end());
      many_.resize(count);
      few_count_ = 0;
    }
  }
  void push_back(int64_t size) {
    resize(this->size() + 1);
    end()[-1] = size;
  }

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
  friend bool operator!=(const Dims& a, const Dims& b) { return !(a == b); }

 private:
  std::array<int64_t, kFew> few_{};
  size_t few_count_ = 0;
  std::vector<int64_t> many_;  // in use if it is not empty
};

}  // namespace hvdata
