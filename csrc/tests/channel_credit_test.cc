// SPDX-License-Identifier: Apache-2.0
// Flow control on a reader: what a lane may hold, by bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

Step Sized(uint64_t number, int trainers, uint64_t bytes) {
  Step step = MakeStep(number, trainers);
  for (std::shared_ptr<const Share>& share : step.shares) {
    auto sized = std::make_shared<Share>(*share);
    sized->bytes = bytes;
    share = std::move(sized);
  }
  return step;
}

// What grows on the way would be more than the trainer's window is made for.
TEST(CreditTest, StaticLanesStopAtTheBytes) {
  Recorder recorder;
  const auto lanes = StaticLanesOf(2, 64, false, &recorder, 1000);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  const auto deal = [&](uint64_t bytes) {
    uint64_t dealt = 0;
    for (; lanes->HasCredit(1); ++dealt) lanes->Deal(Sized(lanes->dealt(), 2, bytes));
    return dealt;
  };
  EXPECT_EQ(deal(100), 10u);
  EXPECT_EQ(lanes->WaitsFor(-1, 1), (std::vector<int>{0, 1}));
  lanes->Taken(0, LaneStep(10), LaneStep(74));
  EXPECT_EQ(lanes->WaitsFor(-1, 1), std::vector<int>{1});
  lanes->Taken(1, LaneStep(10), LaneStep(74));
  EXPECT_EQ(deal(400), 2u);
  lanes->Close(0, LaneStep(12));
  lanes->Taken(1, LaneStep(11), LaneStep(75));
  EXPECT_EQ(deal(5000), 1u) << "two steps in any case";
  lanes->Close(1, LaneStep(0));
  EXPECT_TRUE(lanes->AllClosed());
}

TEST(CreditTest, DynamicLanesStopAtTheBytes) {
  Recorder recorder;
  const auto lanes = DynamicLanesOf(2, &recorder, 1000);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  const auto deal = [&](uint64_t bytes) {
    uint64_t dealt = 0;
    for (; lanes->HasCredit(1); ++dealt) lanes->Deal(Sized(lanes->dealt(), 1, bytes));
    return dealt;
  };
  EXPECT_EQ(deal(250), 8u);
  lanes->Taken(0, LaneStep(3), LaneStep(67));
  EXPECT_EQ(deal(250), 3u) << "whoever has room";
  lanes->Taken(1, LaneStep(4), LaneStep(68));
  EXPECT_EQ(deal(9000), 2u) << "two in any case";
}

}  // namespace
}  // namespace hvdata
