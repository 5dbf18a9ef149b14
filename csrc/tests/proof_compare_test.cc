// SPDX-License-Identifier: Apache-2.0
// Shares as they were dealt and as they came.
#include <gtest/gtest.h>

#include <vector>

#include "proof/account.h"

namespace hvdata::proof {
namespace {

using Prints = std::vector<Fingerprint>;

ShareHash ComparedShare(const Prints& rows) {
  ShareHash share;
  for (const Fingerprint row : rows) share.data.Add(row);
  share.hash = Hash(rows.data(), rows.size() * sizeof(Fingerprint), 0);
  return share;
}

wire::Received Came(const Prints& rows, uint64_t position = 7) {
  return {EpochStep(3), Position(position), rows.size(), ComparedShare(rows).hash};
}

TEST(Compare, TellsWhatIsWrong) {
  const struct {
    Prints came;
    std::string text;
    uint64_t lost, twice, altered;
  } cases[] = {
      {{1, 3}, "1 row lost", 1, 0, 0},
      {{1, 2, 2, 3}, "1 row too many", 0, 1, 0},
      {{1, 9, 3}, "altered", 0, 0, 3},
      {{3, 2, 1}, "altered", 0, 0, 3},
  };
  const ShareHash dealt = ComparedShare({1, 2, 3});
  EXPECT_EQ(Compare(&dealt, Position(7), Came({1, 2, 3})).text, "");
  for (const auto& one : cases) {
    const Difference found = Compare(&dealt, Position(7), Came(one.came));
    EXPECT_EQ(found.text, "its share is not what the pipeline yielded for it: " + one.text);
    EXPECT_EQ(found.lost, one.lost) << one.text;
    EXPECT_EQ(found.twice, one.twice) << one.text;
    EXPECT_EQ(found.altered, one.altered) << one.text;
  }
  wire::Received padded = Came({1, 2, 3});
  ++padded.hash;
  EXPECT_EQ(Compare(&dealt, Position(7), padded).altered, 3u) << "of padding or weights";
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

}  // namespace
}  // namespace hvdata::proof
