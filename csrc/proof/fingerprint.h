// SPDX-License-Identifier: Apache-2.0
// The hash of a row: 64 bits of XXH3, the same on every machine. Also the digest of a sequence of rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvdata::proof {

using Fingerprint = uint64_t;

// Hash(b, Hash(a, seed)) depends on a, on b, and on their order.
Fingerprint Hash(const void* data, size_t bytes, Fingerprint seed);

// A digest of rows in their order. Digests of two sequences can be joined. So a digest does not depend on how the rows
// were divided into pieces. `order` is a polynomial of the rows modulo the prime 2^61 - 1. (Modulo 2^64 the Thue-Morse
// sequences of two values collide for every base.) An attacker can find two sequences with the same digest.
struct Digest {
  uint64_t rows = 0;
  uint64_t order = 0;
  uint64_t sum = 0;  // the same in any order

  void Add(Fingerprint row);
  void Append(const Digest& behind);
  // Adds the digest `between` of some rows of a sequence. `behind`: how many rows of the sequence come after them. If
  // each process does this for its own rows, the digests of all processes can be added with `behind` 0. The result is
  // the digest of the sequence.
  void Put(const Digest& between, uint64_t behind);
};

inline bool operator==(const Digest& a, const Digest& b) {
  return a.rows == b.rows && a.order == b.order && a.sum == b.sum;
}

}  // namespace hvdata::proof
