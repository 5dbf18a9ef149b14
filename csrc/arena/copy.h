// SPDX-License-Identifier: Apache-2.0
// Copies of batches into memory that another process will read.
#pragma once

#include <cstddef>

namespace hvdata {

// Copies from this size on leave the caches before they are read. So they are stored past the caches, which need not fetch what is
// overwritten: a third less traffic. Smaller copies are read from a cache.
constexpr size_t kPastCaches = 8 << 20;

// `to` is aligned to 64 bytes. One thread can't use all of the memory bandwidth. From kPastCaches bytes on other threads help, if
// this one may use several processors.
void CopyOut(char* to, const char* from, size_t bytes);

}  // namespace hvdata
