// SPDX-License-Identifier: Apache-2.0
// Flow control on a reader: what a lane may hold, by bytes.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

// Deals steps of shares of so many bytes while there is credit. Returns their number.
uint64_t DealAll(Lanes* lanes, int shares, uint64_t bytes) {
  uint64_t dealt = 0;
  for (; lanes->HasCredit(1); ++dealt) {
    Step step = MakeStep(lanes->dealt(), shares);
    for (std::shared_ptr<const Share>& share : step.shares) {
      auto sized = std::make_shared<Share>(*share);
      sized->bytes = bytes;
      share = std::move(sized);
    }
    lanes->Deal(std::move(step));
  }
  return dealt;
}

// Shares that grow during the epoch would exceed the trainer's window.
TEST(CreditTest, StaticLanesStopAtTheBytes) {
  Recorder recorder;
  const auto lanes = StaticLanesOf(2, 64, false, &recorder, 1000);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  const auto deal = [&](uint64_t bytes) { return DealAll(lanes.get(), 2, bytes); };
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
  const auto deal = [&](uint64_t bytes) { return DealAll(lanes.get(), 1, bytes); };
  EXPECT_EQ(deal(250), 8u);
  lanes->Taken(0, LaneStep(3), LaneStep(67));
  EXPECT_EQ(deal(250), 3u) << "whoever has room";
  lanes->Taken(1, LaneStep(4), LaneStep(68));
  EXPECT_EQ(deal(9000), 2u) << "two in any case";
}

}  // namespace
}  // namespace hvdata
