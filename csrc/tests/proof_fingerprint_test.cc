// SPDX-License-Identifier: Apache-2.0
// The hash is that of xxHash on every machine, whatever instructions it is computed with.
#include "proof/fingerprint.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_SCALAR
#include <xxhash.h>

namespace hvdata::proof {
namespace {

TEST(Fingerprint, IsThatOfPlainInstructions) {
  std::mt19937_64 random(1);
  std::string bytes(1 << 16, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (int i = 0; i < 4000; ++i) {
    const size_t size = i < 600 ? static_cast<size_t>(i) : random() % (bytes.size() / 2), begin = random() % (bytes.size() / 2);
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

}  // namespace
}  // namespace hvdata::proof
