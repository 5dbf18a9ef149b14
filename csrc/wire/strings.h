// SPDX-License-Identifier: Apache-2.0
// A tensor of strings as one block of bytes: the lengths (uint64 each, little-endian), then the bytes of all strings.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "wire/codec.h"

namespace hvdata::wire {

inline uint64_t EncodedSize(const std::vector<std::string_view>& strings) {
  uint64_t size = strings.size() * sizeof(uint64_t);
  for (const std::string_view string : strings) size += string.size();
  return size;
}

// Writes EncodedSize() bytes to `out`.
inline void EncodeStringsTo(const std::vector<std::string_view>& strings, char* out) {
  for (const std::string_view string : strings) out = StoreLittleEndian<uint64_t>(string.size(), out);
  for (const std::string_view string : strings) out = std::copy(string.begin(), string.end(), out);
}

// Gives the `count` strings in `bytes`, as views. False if `bytes` is not exactly such an encoding.
inline bool DecodeStrings(std::string_view bytes, size_t count, std::vector<std::string_view>* strings) {
  strings->clear();
  // This check comes before any allocation, because `count` comes from the other process, too.
  if (count > bytes.size() / sizeof(uint64_t)) return false;
  strings->reserve(count);
  std::string_view rest = bytes.substr(count * sizeof(uint64_t));
  for (size_t i = 0; i < count; ++i) {
    const auto size = LoadLittleEndian<uint64_t>(bytes.data() + i * sizeof(uint64_t));
    if (size > rest.size()) return false;
    strings->push_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return rest.empty();
}

}  // namespace hvdata::wire
