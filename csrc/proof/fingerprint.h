// SPDX-License-Identifier: Apache-2.0
// What a row is known by: 64 bits of XXH3, the same on every machine; and sequences of rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdata::proof {

using Fingerprint = uint64_t;

// Hash(b, Hash(a, seed)) depends on both, and on their order.
Fingerprint Hash(const void* data, size_t bytes, Fingerprint seed);

// Rows in their order. Sequences can be joined, so that a digest is the same however the rows came in pieces.
// `order` is a polynomial of the rows in a field, the integers modulo 2^61 - 1: modulo 2^64 there are plain sequences of two
// values that no base tells apart (Thue-Morse). It does not withstand who looks for two equal ones on purpose.
struct Digest {
  uint64_t rows = 0;
  uint64_t order = 0;
  uint64_t sum = 0;  // the same in any order

  void Add(Fingerprint row);
  void Append(const Digest& behind);
};

inline bool operator==(const Digest& a, const Digest& b) {
  return a.rows == b.rows && a.order == b.order && a.sum == b.sum;
}

}  // namespace hvdata::proof
