// SPDX-License-Identifier: Apache-2.0
// The hash of a share. The reader computes it at the cut, and the trainer computes it again when it hands the share
// out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proof/fingerprint.h"
#include "proof/report.h"

namespace hvdata::proof {

// Hashes of rows in their order. The fingerprint of each row is kept only up to kMostKept rows, because a row may be a
// single byte.
struct RowHashes {
  static constexpr size_t kMostKept = 1 << 20;

  Digest digest;
  std::vector<Fingerprint> each;

  void Add(const Fingerprint* rows, size_t count) {
    for (size_t i = 0; i < count; ++i) digest.Add(rows[i]);
    if (digest.rows <= kMostKept)
      each.insert(each.end(), rows, rows + count);
    else
      std::vector<Fingerprint>().swap(each);  // frees the memory, too
  }
  uint64_t count() const { return digest.rows; }
  bool has_each() const { return each.size() == count(); }
};

struct ShareHash {
  RowHashes rows;        // of its data, without padding
  Fingerprint hash = 0;  // of these rows and of everything else in the share
};

// The hashes of a step of a verified channel. Empty in other channels.
struct StepHashes {
  std::vector<Element> elements;
  std::vector<ShareHash> shares;  // one for each trainer; dynamic: one for the trainer that takes it
};

}  // namespace hvdata::proof
