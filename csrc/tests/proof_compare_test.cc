// SPDX-License-Identifier: Apache-2.0
// Shares as they were dealt and as they came.
#include <gtest/gtest.h>

#include <vector>

#include "proof/compare.h"
#include "wire/codec.h"

namespace hvdata::proof {
namespace {

using Prints = std::vector<Fingerprint>;

ShareHash ComparedShare(const Prints& rows) {
  ShareHash share;
  share.rows.Add(rows.data(), rows.size());
  share.hash = Hash(rows.data(), rows.size() * sizeof(Fingerprint), 0);
  return share;
}

wire::Received Came(const Prints& rows, uint64_t position = 7) {
  wire::Received received{EpochStep(3), Position(position), rows.size(), ComparedShare(rows).hash, ""};
  for (const Fingerprint row : rows) wire::AppendLittleEndian(row, &received.fingerprints);
  return received;
}

TEST(Compare, TellsWhatIsWrong) {
  const struct {
    Prints came;
    std::string text;
    uint64_t lost, twice, altered;
  } cases[] = {
      {{1, 2, 3}, "", 0, 0, 0},
      {{1, 3}, "1 row lost, from row 1 of 3 on", 1, 0, 0},
      {{1, 2, 2, 3}, "1 row twice, from row 2 of 3 on", 0, 1, 0},
      {{1, 9, 3}, "1 row altered, from row 1 of 3 on", 0, 0, 1},
      {{3, 2, 1}, "its rows are in another order, from row 0 of 3 on", 0, 0, 1},
      {{1, 2, 3, 4, 5}, "2 rows that the pipeline did not yield for it", 0, 0, 0},
      {{1, 1, 9}, "1 row lost, 1 row twice, 1 row altered, from row 1 of 3 on", 1, 1, 1},
  };
  const ShareHash dealt = ComparedShare({1, 2, 3});
  for (const auto& one : cases) {
    const Difference found = Compare(&dealt, Position(7), Came(one.came));
    EXPECT_EQ(found.text, one.text);
    EXPECT_EQ(found.lost, one.lost) << one.text;
    EXPECT_EQ(found.twice, one.twice) << one.text;
    EXPECT_EQ(found.altered, one.altered) << one.text;
  }
  wire::Received padded = Came({1, 2, 3});
  ++padded.hash;
  EXPECT_EQ(Compare(&dealt, Position(7), padded).text, "padding or weights are altered");
}

TEST(Compare, AShareOfAnotherPlaceIsLostOrTwice) {
  const ShareHash dealt = ComparedShare({1, 2, 3});
  const Difference lost = Compare(&dealt, Position(7), Came({4}, 8)),
                   twice = Compare(&dealt, Position(7), Came({5, 6}, 6));
  EXPECT_EQ(lost.text, "its share up to element 7 of the reader's epoch is lost: the one up to element 8 came");
  EXPECT_EQ(lost.lost, 3u);
  EXPECT_EQ(twice.text, "2 rows came twice: the share up to element 6 of the reader's epoch came before");
  EXPECT_EQ(twice.twice, 2u);
  EXPECT_EQ(Compare(nullptr, Position(0), Came({5})).twice, 1u) << "no share was sent";
}

// More rows than are kept one by one: that they are others is found, but not which ones.
TEST(ManyRows, AreKnownByTheirDigestAlone) {
  ShareHash share;
  const Prints some(RowHashes::kMostKept / 4, 7);
  for (int i = 0; i < 4; ++i) share.rows.Add(some.data(), some.size());
  EXPECT_TRUE(share.rows.has_each());
  share.rows.Add(some.data(), 1);
  EXPECT_EQ(share.rows.count(), RowHashes::kMostKept + 1);
  EXPECT_FALSE(share.rows.has_each());
  EXPECT_EQ(share.rows.each.capacity(), 0u);
  wire::Received received{EpochStep(0), Position(1), share.rows.count(), share.hash, ""};
  EXPECT_EQ(Compare(&share, Position(1), received).text, "");
  ++received.hash;
  EXPECT_EQ(Compare(&share, Position(1), received).text, "its share is not what the pipeline yielded for it (altered)");
  EXPECT_EQ(Compare(&share, Position(1), received).altered, share.rows.count());
}

}  // namespace
}  // namespace hvdata::proof
