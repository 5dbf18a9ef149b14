// SPDX-License-Identifier: Apache-2.0
#include "proof/fingerprint.h"

#include "proof/fingerprint_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>
#if XXH_VERSION_NUMBER < 800
#error "xxHash 0.8 or later is needed: earlier ones have another XXH3"
#endif

namespace hvdata::proof {

namespace {
// Odd, so that no fingerprint is lost however many follow it.
constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull;

uint64_t PowerOfBase(uint64_t exponent) {
  uint64_t result = 1;
  for (uint64_t square = kBase; exponent > 0; exponent >>= 1, square *= square) {
    if (exponent & 1) result *= square;
  }
  return result;
}
}  // namespace

Fingerprint Hash(const void* data, size_t bytes, Fingerprint seed) {
#ifdef HVDATA_AVX2
  constexpr size_t kShort = 240;  // XXH3 takes those byte by byte in any case
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2 && bytes > kShort) return HashAvx2(data, bytes, seed);
#endif
  return XXH3_64bits_withSeed(data, bytes, seed);
}

void Digest::Add(Fingerprint row) {
  ++rows;
  order = order * kBase + row;
  sum += row;
}

void Digest::Append(const Digest& behind) {
  rows += behind.rows;
  order = order * PowerOfBase(behind.rows) + behind.order;
  sum += behind.sum;
}

Digest DigestOf(const std::vector<Fingerprint>& rows, size_t begin, size_t end) {
  Digest digest;
  for (size_t i = begin; i < end; ++i) digest.Add(rows[i]);
  return digest;
}

}  // namespace hvdata::proof
