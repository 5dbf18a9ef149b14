// SPDX-License-Identifier: Apache-2.0
// Bytes that differ in all batches, and a checksum that depends on each byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hvdata {

inline void Fill(char* data, size_t size, uint64_t seed) {
  uint64_t word = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < size; i += sizeof word) {
    word = word * 6364136223846793005 + 1442695040888963407;
    std::memcpy(data + i, &word, size - i < sizeof word ? size - i : sizeof word);
  }
}

inline uint64_t Checksum(const char* data, size_t size) {
  uint64_t sum = 0xcbf29ce484222325 ^ size;
  for (size_t i = 0; i < size; i += sizeof sum) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, size - i < sizeof word ? size - i : sizeof word);
    sum = (sum ^ word) * 0x100000001b3;
  }
  return sum;
}

}  // namespace hvdata
