// SPDX-License-Identifier: Apache-2.0
// Copies of batches into memory that another process will read.
#pragma once

#include <cstddef>

namespace hvdata {

// From here on a copy is out of the caches before it is read: stores that go past them need not fetch what they
// overwrite, a third of the traffic. Smaller ones the reader finds in a cache.
constexpr size_t kPastCaches = 8 << 20;

// `to` is aligned to 64 bytes. One thread doesn't use all of a machine's memory bandwidth: from kPastCaches bytes on,
// others help, where this one may use several processors.
void CopyOut(char* to, const char* from, size_t bytes);

}  // namespace hvdata
