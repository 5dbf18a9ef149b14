// SPDX-License-Identifier: Apache-2.0
// Copies batches into memory that another process reads.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hvdata {

// A copy of this size or more does not stay in the caches until it is read. So its stores bypass the caches, which then
// need not load the overwritten lines. That saves a third of the traffic. Smaller copies are read from a cache.
constexpr size_t kPastCaches = 8 << 20;
constexpr size_t kLine = 64;
// Starting a thread takes tens of microseconds. Copying this much takes about a millisecond.
constexpr size_t kLeastPart = 4 << 20;
// More threads would take processors from the training.
constexpr size_t kMostParts = 4;

inline size_t Processors() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? static_cast<size_t>(CPU_COUNT(&allowed)) : 1;
}

inline void CopyPastCaches(char* to, const char* from, size_t bytes) {
#ifdef __SSE2__
  if (const size_t skew = reinterpret_cast<uintptr_t>(to) % kLine; skew > 0) {
    const size_t head = std::min(bytes, kLine - skew);
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
  }
  for (; bytes >= kLine; bytes -= kLine, from += kLine, to += kLine) {
    for (size_t at = 0; at < kLine; at += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
  }
  _mm_sfence();  // orders these stores before the store that announces them to the other process
#endif
  std::memcpy(to, from, bytes);
}

// Calls copy(begin, end) for the parts of a copy of kPastCaches bytes or more. One thread can't use all of the memory
// bandwidth. So other threads help, if the process may use several processors. `copy` must not throw.
template <typename Copy>
void CopyInParts(size_t bytes, const Copy& copy) {
  const size_t parts = std::max<size_t>(std::min({bytes / kLeastPart, Processors(), kMostParts}), 1);
  const size_t part = bytes / parts / kLine * kLine;
  std::vector<std::thread> helpers;
  helpers.reserve(parts);
  size_t begin = 0;
  try {
    for (; helpers.size() + 1 < parts; begin += part) helpers.emplace_back(std::cref(copy), begin, begin + part);
  } catch (const std::exception&) {  // no more threads or no memory: this thread copies the rest
  }
  copy(begin, bytes);
  for (std::thread& helper : helpers) helper.join();
}

// Several threads do a large copy.
inline void CopyOut(char* to, const char* from, size_t bytes) {
  if (bytes < kPastCaches) {
    std::memcpy(to, from, bytes);
    return;
  }
  CopyInParts(bytes, [=](size_t begin, size_t end) { CopyPastCaches(to + begin, from + begin, end - begin); });
}

}  // namespace hvdata
