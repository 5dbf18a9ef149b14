// SPDX-License-Identifier: Apache-2.0
// Copies of batches into memory that another process will read.
#ifndef HOROVOD_DATA_ARENA_COPY_H_
#define HOROVOD_DATA_ARENA_COPY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hvdata {

// From here on a copy is out of the caches before it is read: stores that go past them need not fetch what they
// overwrite, a third of the traffic. Smaller ones the reader finds in a cache.
constexpr size_t kPastCaches = 8 << 20;

// `to` is aligned to 16 bytes.
inline void CopyOut(char* to, const char* from, size_t bytes) {
#ifdef __SSE2__
  if (bytes >= kPastCaches) {
    constexpr size_t kLine = 64;
    for (; bytes >= kLine; bytes -= kLine, from += kLine, to += kLine) {
      for (size_t at = 0; at < kLine; at += sizeof(__m128i)) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
      }
    }
    _mm_sfence();  // such stores are not ordered before the one that tells the other process of them
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace hvdata

#endif  // HOROVOD_DATA_ARENA_COPY_H_
