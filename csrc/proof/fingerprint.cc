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
__extension__ typedef unsigned __int128 Wide;

// Reduces any number modulo 2^61 - 1.
constexpr uint64_t Reduced(Wide number) {
  constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
  number = (number & kPrime) + (number >> 61);
  number = (number & kPrime) + (number >> 61);
  const auto rest = static_cast<uint64_t>(number);
  return rest >= kPrime ? rest - kPrime : rest;
}

// A generator of the field's multiplicative group, so its powers repeat as late as possible. A row takes two places of
// the polynomial, because a fingerprint has more bits than the field.
constexpr uint64_t kBase = 0x1E3779B97F4A7C1Aull;
constexpr uint64_t kRow = Reduced(Wide{kBase} * kBase);

uint64_t PowerOfRow(uint64_t exponent) {
  uint64_t result = 1;
  for (uint64_t square = kRow; exponent > 0; exponent >>= 1, square = Reduced(Wide{square} * square)) {
    if (exponent & 1) result = Reduced(Wide{result} * square);
  }
  return result;
}
}  // namespace

Fingerprint Hash(const void* data, size_t bytes, Fingerprint seed) {
#ifdef HVDATA_AVX2
  constexpr size_t kShort = 240;  // XXH3 hashes fewer bytes without vector instructions
  static const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx2 && bytes > kShort) return HashAvx2(data, bytes, seed);
#endif
  return XXH3_64bits_withSeed(data, bytes, seed);
}

void Digest::Add(Fingerprint row) {
  ++rows;
  order = Reduced(Wide{order} * kRow + Wide{row >> 32} * kBase + (row & 0xffffffff));
  sum += row;
}

void Digest::Append(const Digest& behind) {
  rows += behind.rows;
  order = Reduced(Wide{order} * PowerOfRow(behind.rows) + behind.order);
  sum += behind.sum;
}

void Digest::Put(const Digest& between, uint64_t behind) {
  rows += between.rows;
  order = Reduced(Wide{between.order} * PowerOfRow(behind) + order);
  sum += between.sum;
}

}  // namespace hvdata::proof
