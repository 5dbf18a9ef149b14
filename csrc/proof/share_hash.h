// SPDX-License-Identifier: Apache-2.0
// The hash of a share: taken where it is cut, and again where it is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proof/fingerprint.h"
#include "proof/report.h"

namespace hvdata::proof {

// Rows in their order. The fingerprint of each row is kept up to kMostKept rows, because a row may be a single byte.
struct RowHashes {
  static constexpr size_t kMostKept = 1 << 20;

  Digest digest;
  std::vector<Fingerprint> each;

  void Add(const Fingerprint* rows, size_t count) {
    for (size_t i = 0; i < count; ++i) digest.Add(rows[i]);
    if (digest.rows <= kMostKept)
      each.insert(each.end(), rows, rows + count);
    else
      std::vector<Fingerprint>().swap(each);  // and give the memory back
  }
  uint64_t count() const { return digest.rows; }
  bool has_each() const { return each.size() == count(); }
};

struct ShareHash {
  RowHashes rows;        // of its data: padding is no row
  Fingerprint hash = 0;  // of these rows and of all else that the share holds
};

// A step of a verified channel. Elsewhere it is empty.
struct StepHashes {
  std::vector<Element> elements;
  std::vector<ShareHash> shares;  // one for each trainer, or (dynamic) one for whoever takes it
};

}  // namespace hvdata::proof
