// SPDX-License-Identifier: Apache-2.0
// Flow control on a reader: what a lane may hold, by bytes and by its trainer's pace.
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

void TakeOne(Credit* credit, size_t lane) {
  credit->Hold(lane, 1);
  credit->Take(lane, 1);
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
  EXPECT_EQ(lanes->WithoutCredit(1), (std::vector<int>{0, 1}));
  lanes->Taken(0, LaneStep(10), LaneStep(74));
  EXPECT_EQ(lanes->WithoutCredit(1), std::vector<int>{1});
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
  const auto lanes = LanesOf({2, true, 0, 1000}, &recorder);
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

// How many shares each lane has been sent.
struct Counter : LaneCalls {
  uint64_t sent[2] = {0, 0};

  Counter() {
    data = [this](int trainer, LaneStep, DealtStep, const Step&) { ++sent[trainer]; };
  }
};

// Steps of 10 us and of 100: both are so quick that 5 ms would be a wide window. The slow one is told 64 and more as well.
TEST(CreditTest, ASlowOneHoldsTwoBeyondItsPartOfThePace) {
  for (const uint64_t times : {2, 10, 100}) {
    Counter counter;
    const auto lanes = LanesOf({2, true, 0, 1 << 20}, &counter);
    for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(2));
    const auto deal = [&] {
      while (lanes->HasCredit(1)) lanes->Deal(Sized(lanes->dealt(), 1, 1));
    };
    uint64_t taken[2] = {0, 0};
    const uint64_t settled =
        100 + 64 * times;  // what lay with the slow one when it was as quick, to all appearances, has gone
    for (uint64_t step = 0; step < settled + 1000; ++step) {
      deal();
      for (const int t : {0, 1}) {
        if (t == 1 && step % times != 0) continue;
        ++taken[t];
        lanes->Taken(t, LaneStep(taken[t]), LaneStep(taken[t] + std::min<uint64_t>(taken[t] + 2, 64)));
      }
      if (step < settled) continue;
      deal();
      EXPECT_EQ(counter.sent[0] - taken[0], 64u);
      EXPECT_LE(counter.sent[1] - taken[1], 2 + (64 + times - 1) / times + 1)
          << times << " times slower, at step " << step;
    }
  }
}

TEST(CreditTest, WhoStopsIsLeftTwoAndWhoGoesOnAgainGetsMore) {
  Credit fair({3, true, 0, 1 << 20});
  for (int i = 0; i < 1000; ++i) {
    for (const size_t lane : {0, 1}) TakeOne(&fair, lane);
  }
  EXPECT_GE(fair.Most(0), 64u);
  EXPECT_GE(fair.Most(1), 64u);
  EXPECT_EQ(fair.Most(2), 2u);
  for (int i = 0; i < 1000; ++i) {
    for (const size_t lane : {0, 1, 2}) TakeOne(&fair, lane);
  }
  EXPECT_GE(fair.Most(2), 60u);
}

// Each has its part of a window, so all of them together leave a slow one what one reader would.
TEST(CreditTest, SeveralReadersDivideIt) {
  for (const uint64_t readers : {2, 4, 64, 100}) {
    Credit fair({2, true, 0, 1 << 20, readers});
    for (int i = 0; i < 10000; ++i) {
      TakeOne(&fair, 0);
      if (i % 10 == 0) TakeOne(&fair, 1);
    }
    EXPECT_GE(readers * fair.Most(0), 64u) << readers << " readers";
    EXPECT_LE(readers * fair.Most(1), 8 + 2 * readers) << readers << " readers";
  }
}

// An epoch's lanes are new, and what is known of their trainers is not.
TEST(CreditTest, ASlowOneIsKnownInTheNextEpoch) {
  Credit fair({2, true, 0, 1 << 20});
  for (int i = 0; i < 1000; ++i) {
    TakeOne(&fair, 0);
    if (i % 10 == 0) TakeOne(&fair, 1);
  }
  Counter counter;
  fair.BeginEpoch();
  const auto lanes = MakeDynamicLanes(&counter, &fair);
  lanes->Open(1, LaneStep(50));  // it is the first
  while (lanes->HasCredit(1)) lanes->Deal(Sized(lanes->dealt(), 1, 1));
  EXPECT_LE(counter.sent[1], 10u);
}

TEST(CreditTest, ANumberOfStepsIsForSlowOnesToo) {
  Counter counter;
  const auto lanes = DynamicLanesOf(2, &counter);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  for (uint64_t step = 1; step <= 500; ++step) {
    while (lanes->HasCredit(1)) lanes->Deal(Sized(lanes->dealt(), 1, 1));
    lanes->Taken(0, LaneStep(step), LaneStep(step + 64));
  }
  EXPECT_EQ(counter.sent[1], 64u);
}

}  // namespace
}  // namespace hvdata
