// SPDX-License-Identifier: Apache-2.0
// Copies of batches into memory that another process will read.
#pragma once

#include <cstddef>

namespace hvdata {

// A copy of this size or more does not stay in the caches until it is read. So its stores bypass the caches, which then
// need not load the overwritten lines. That saves a third of the traffic. Smaller copies are read from a cache.
constexpr size_t kPastCaches = 8 << 20;

// `to` is aligned to 64 bytes. One thread can't use all of the memory bandwidth. So other threads help from kPastCaches
// bytes on, if the process may use several processors.
void CopyOut(char* to, const char* from, size_t bytes);

}  // namespace hvdata
