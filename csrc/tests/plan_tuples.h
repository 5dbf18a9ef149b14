// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace hvdata::plan {

// Calls `check` with every tuple of `count` numbers from 0 to `most`.
template <typename T, typename Check>
void ForAllTuples(int count, T most, Check check) {
  std::vector<T> tuple(static_cast<size_t>(count), 0);
  for (;;) {
    check(tuple);
    size_t digit = 0;
    while (digit < tuple.size() && tuple[digit] == most) tuple[digit++] = 0;
    if (digit == tuple.size()) return;
    ++tuple[digit];
  }
}

}  // namespace hvdata::plan
