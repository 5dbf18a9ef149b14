// SPDX-License-Identifier: Apache-2.0
#include "proof/promise.h"

namespace hvdata::proof {

void RowPrints::Add(const Fingerprint* rows, size_t count) {
  for (size_t i = 0; i < count; ++i) digest.Add(rows[i]);
  if (digest.rows <= kMostKept) each.insert(each.end(), rows, rows + count);
  else ForgetEach();
}

}  // namespace hvdata::proof
