// SPDX-License-Identifier: Apache-2.0
// A tensor of strings as one block of bytes: the lengths (uint64 each, little-endian), then the bytes of all strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace hvdata::wire {

uint64_t EncodedSize(const std::vector<std::string_view>& strings);

// Writes EncodedSize() bytes to `out`.
void EncodeStringsTo(const std::vector<std::string_view>& strings, char* out);

// Gives the `count` strings in `bytes`, as views into it. False if `bytes` is not exactly such an encoding.
bool DecodeStrings(std::string_view bytes, size_t count, std::vector<std::string_view>* strings);

}  // namespace hvdata::wire
