// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/outcome.h"

namespace hvdata {
namespace {

TEST(Outcome, ItsTextBeginsWithThePlaceAsFarAsItIsKnown) {
  const std::pair<Place, const char*> cases[] = {
      {{}, "why"},
      {{"rank 2 on node1"}, "[rank 2 on node1] why"},
      {{"rank 2 on node1", "channel train", 0}, "[rank 2 on node1, channel train, epoch 0] why"},
      {{"rank 2 on node1", "channel train", 1, 0}, "[rank 2 on node1, channel train, epoch 1, step 0] why"},
      {{"reader 0 on a", "", {}, 7, true}, "[reader 0 on a, step 7 of its own] why"},
  };
  for (const auto& [place, text] : cases) EXPECT_EQ(Outcome(kInternal, "why", place).Text(), text);
}

TEST(Outcome, OnlyAnErrorWithoutAPlaceGetsOne) {
  const Place here{"rank 1 on b"};
  EXPECT_EQ(Outcome(kInternal, "why").At(here).Text(), "[rank 1 on b] why");
  EXPECT_EQ(Outcome(kInternal, "why", {"rank 0 on a"}).At(here).Text(), "[rank 0 on a] why");
  EXPECT_EQ(Outcome(kOk, "state").At(here).Text(), "state");
}

}  // namespace
}  // namespace hvdata
