// SPDX-License-Identifier: Apache-2.0
// The hash is that of xxHash on every machine, whatever instructions it is computed with.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "proof/fingerprint.h"

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_SCALAR
#include <xxhash.h>

namespace hvdata::proof {
namespace {

Digest DigestOf(const std::vector<Fingerprint>& rows, size_t begin, size_t end) {
  Digest digest;
  for (size_t i = begin; i < end; ++i) digest.Add(rows[i]);
  return digest;
}

TEST(Fingerprint, IsThatOfPlainInstructions) {
  std::mt19937_64 random(1);
  std::string bytes(1 << 16, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (int i = 0; i < 4000; ++i) {
    const size_t size = i < 600 ? static_cast<size_t>(i) : random() % (bytes.size() / 2),
                 begin = random() % (bytes.size() / 2);
    const uint64_t seed = i % 3 == 0 ? 0 : random();
    ASSERT_EQ(Hash(bytes.data() + begin, size, seed), XXH3_64bits_withSeed(bytes.data() + begin, size, seed)) << size;
  }
}

// Certificates of different machines and years are compared: a published value of XXH3.
TEST(Fingerprint, OfNothing) { EXPECT_EQ(Hash(nullptr, 0, 0), 0x2D06800538D394C2u); }

TEST(Digest, OfPiecesIsThatOfTheWhole) {
  std::vector<Fingerprint> rows(100);
  std::mt19937_64 random(2);
  for (Fingerprint& row : rows) row = random();
  const Digest whole = DigestOf(rows, 0, rows.size());
  for (size_t cut = 0; cut <= rows.size(); ++cut) {
    Digest joined = DigestOf(rows, 0, cut);
    joined.Append(DigestOf(rows, cut, rows.size()));
    EXPECT_EQ(joined, whole);
  }
  std::swap(rows[3], rows[70]);
  const Digest swapped = DigestOf(rows, 0, rows.size());
  EXPECT_NE(swapped.order, whole.order);
  EXPECT_EQ(swapped.sum, whole.sum);
}

// Two values in the order of Thue and Morse, and the other way round: equal modulo 2^64 whatever the base.
TEST(Digest, TellsSequencesOfTwoValuesApart) {
  const Fingerprint values[2] = {0x0123456789ABCDEFu, 0xFEDCBA9876543210u};
  for (const size_t length : {size_t{16}, size_t{2048}, size_t{1} << 16}) {
    Digest a, b;
    for (size_t i = 0; i < length; ++i) {
      const int odd = __builtin_popcountll(i) & 1;
      a.Add(values[odd]);
      b.Add(values[1 - odd]);
    }
    EXPECT_EQ(a.sum, b.sum) << length;
    EXPECT_NE(a.order, b.order) << length;
  }
}

// The value that another program (Python with its whole numbers) computes for the same rows, because certificates of
// different versions are compared.
TEST(Digest, OfTheseRows) {
  const Digest digest = DigestOf({1, 2, 0xFFFFFFFFFFFFFFFFu}, 0, 3);
  EXPECT_EQ(digest.order, 0x1a4144a54a520ed6u);
  EXPECT_EQ(digest.sum, 2u);
}

// Each bit of a row counts, wherever it stands. No row has the hash of another row.
TEST(Digest, EveryBitCounts) {
  std::set<uint64_t> orders;
  for (size_t at = 0; at < 20; ++at) {
    for (int bit = 0; bit < 64; ++bit) {
      std::vector<Fingerprint> rows(20);
      rows[at] ^= Fingerprint{1} << bit;
      orders.insert(DigestOf(rows, 0, rows.size()).order);
    }
  }
  EXPECT_EQ(orders.size(), 20u * 64);
}

// Pieces whose numbers come from another process: any 64 bits are taken.
TEST(Digest, OfPiecesThatAreNoneOfOurs) {
  Digest a{3, ~uint64_t{0}, 0};
  a.Append({~uint64_t{0}, ~uint64_t{0}, 0});
  EXPECT_LT(a.order, (uint64_t{1} << 61) - 1);
}

}  // namespace
}  // namespace hvdata::proof
