// SPDX-License-Identifier: Apache-2.0
// The order of a shuffled epoch, without a list of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hvdata::plan {

// A permutation of the numbers 0 to n - 1 that depends on the seed and the epoch. It needs no memory, and any position
// takes the same short time. Saved epochs and certificates depend on this order, so it must never change.
//
// A Feistel network of 8 rounds permutes all numbers of a certain even count of bits. At() applies the network until
// the result is below n (cycle walking). There are at most 4 n such numbers, or 256 if that is more.
class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch) : n_(n) {
    int bits = 8;
    while (bits < 64 && (n - 1) >> bits != 0) bits += 2;
    half_ = bits / 2;
    mask_ = (uint64_t{1} << half_) - 1;
    const uint64_t key = Mix(Mix(seed) ^ epoch);
    for (size_t round = 0; round < keys_.size(); ++round) keys_[round] = Mix(key + round);
  }

  // The number at this position. `position` is less than n.
  uint64_t At(uint64_t position) const {
    uint64_t number = position;
    do {
      uint64_t left = number >> half_, right = number & mask_;
      for (const uint64_t key : keys_) {
        const uint64_t next = left ^ (Mix(key ^ right) & mask_);
        left = right;
        right = next;
      }
      number = left << half_ | right;
    } while (number >= n_);
    return number;
  }

 private:
  // The function of the generator splitmix64.
  static uint64_t Mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  uint64_t n_;
  int half_;  // bits of each half
  uint64_t mask_;
  std::array<uint64_t, 8> keys_;
};

}  // namespace hvdata::plan
