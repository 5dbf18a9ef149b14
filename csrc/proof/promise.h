// SPDX-License-Identifier: Apache-2.0
// What a share is known by: where it is cut, and again where it is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "proof/fingerprint.h"

namespace hvdata::proof {

// Rows in their order, and each one's fingerprint as long as these are not too many: rows can be of a byte each.
struct RowPrints {
  static constexpr size_t kMostKept = 1 << 20;

  Digest digest;
  std::vector<Fingerprint> each;

  void Add(const Fingerprint* rows, size_t count) {
    for (size_t i = 0; i < count; ++i) digest.Add(rows[i]);
    if (digest.rows <= kMostKept)
      each.insert(each.end(), rows, rows + count);
    else
      ForgetEach();
  }
  uint64_t count() const { return digest.rows; }
  void ForgetEach() { std::vector<Fingerprint>().swap(each); }  // and give the memory back
  bool has_each() const { return each.size() == count(); }
};

struct Promise {
  RowPrints rows;        // of its data: padding is none
  Fingerprint seal = 0;  // of these and of all else that the share holds
};

}  // namespace hvdata::proof
