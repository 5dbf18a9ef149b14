// SPDX-License-Identifier: Apache-2.0
// How often a test without threads repeats itself. ThreadSanitizer makes it ten times as slow, so it repeats a tenth as
// often.
#pragma once

#include <cstddef>

namespace hvdata {

constexpr size_t Rounds(size_t rounds) {
#if defined(__SANITIZE_THREAD__)
  return rounds / 10;
#else
  return rounds;
#endif
}

}  // namespace hvdata
