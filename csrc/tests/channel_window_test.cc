// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "channel/window.h"
#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

constexpr uint64_t kMany = 1 << 20;

// A rank that has to wait for every step.
void Work(Window* window, int steps, int64_t step_ns = 1000000) {
  for (int i = 0; i < steps; ++i) {
    window->Waits();
    window->Took(step_ns);
  }
}

TEST(WindowTest, ANumberStaysWhatItIs) {
  for (const int fixed : {1, 3, 200}) {
    Window window(fixed, 1, true);
    window.Came(kMany);
    Work(&window, 1000, 1000000000);
    EXPECT_EQ(window.Steps(), fixed);
    EXPECT_FALSE(window.fits_itself());
  }
}

TEST(WindowTest, DoublesWhereItIsWaitedFor) {
  Window window(0, kMany, false);
  window.Came(4);
  EXPECT_EQ(window.Steps(), 2);
  Work(&window, 2);
  EXPECT_EQ(window.Steps(), 2) << "the first steps of an epoch tell nothing";
  Work(&window, 1);
  EXPECT_EQ(window.Steps(), 4);
  Work(&window, 3);
  EXPECT_EQ(window.Steps(), 4) << "the four have not gone through yet";
  Work(&window, 1);
  EXPECT_EQ(window.Steps(), 8);
  Work(&window, 1000);
  EXPECT_EQ(window.Steps(), Window::kMost);
}

TEST(WindowTest, StaysWhereNobodyWaits) {
  Window window(0, kMany, false);
  window.Came(4);
  for (int i = 0; i < 1000; ++i) window.Took(1000000);
  EXPECT_EQ(window.Steps(), 2);
}

// Its reader would be woken for every few steps.
TEST(WindowTest, HasWhatAQuickRankWorksOffInAMillisecond) {
  for (const auto& [step_ns, steps] :
       std::vector<std::pair<int64_t, int>>{{1000, 64}, {20000, 64}, {100000, 16}, {300000, 4}, {600000, 2}}) {
    Window window(0, kMany, false);
    window.Came(4);
    for (int i = 0; i < 1000; ++i) window.Took(step_ns);
    EXPECT_EQ(window.Steps(), steps) << "steps of " << step_ns << " ns";
    window.Came(kMany / 3);
    EXPECT_EQ(window.Steps(), std::min(steps, 3)) << "the bytes bound it all the same";
  }
}

// What is waited for at an epoch's beginning is the pipeline, whatever the last epoch had.
TEST(WindowTest, StaysWhereOnlyTheBeginningIsWaitedFor) {
  Window window(0, kMany, false);
  window.Came(4);
  for (int epoch = 0; epoch < 10; ++epoch) {
    window.Begins();
    for (int i = 0; i < 100; ++i) {
      if (i < 2) window.Waits();
      window.Took(1000000);
    }
  }
  EXPECT_EQ(window.Steps(), 2);
}

TEST(WindowTest, BoundedInBytesButForTwoSteps) {
  Window window(0, kMany, false);
  window.Came(kMany / 5);
  Work(&window, 1000);
  EXPECT_EQ(window.Steps(), 5);
  window.Came(10 * kMany);
  EXPECT_EQ(window.Steps(), 2);
  for (int i = 0; i < 1000; ++i) window.Came(kMany / 5);
  EXPECT_EQ(window.Steps(), 5) << "one large share is not for ever";
}

// What a rank has beyond two steps it works off in 5 ms, so that one ten times slower has no more than a tenth.
TEST(WindowTest, DynamicIsAsWideAsTheRankIsQuick) {
  Window quick(0, kMany, true), slow(0, kMany, true), slower(0, kMany, true);
  Work(&quick, 1000, 100000);
  Work(&slow, 1000, 1000000);
  Work(&slower, 1000, 10000000);
  EXPECT_EQ(quick.Steps(), 50);
  EXPECT_EQ(slow.Steps(), 5);
  EXPECT_EQ(slower.Steps(), 2);
  Work(&quick, 100, 1000000000);
  EXPECT_EQ(quick.Steps(), 2) << "when it has become slow";
}

// ---- The reader's side.

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
TEST(LaneBoundTest, StaticLanesStopAtTheBytes) {
  Recorder recorder;
  const auto lanes = MakeStaticLanes(2, 64, false, recorder.Output(), 1000);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  const auto deal = [&](uint64_t bytes) {
    uint64_t dealt = 0;
    for (; lanes->RoomFor(1); ++dealt) lanes->Deal(Sized(lanes->dealt(), 2, bytes));
    return dealt;
  };
  EXPECT_EQ(deal(100), 10u);
  EXPECT_EQ(lanes->FullFor(1), (std::vector<int>{0, 1}));
  lanes->Taken(0, LaneStep(10), LaneStep(74));
  EXPECT_EQ(lanes->FullFor(1), std::vector<int>{1});
  lanes->Taken(1, LaneStep(10), LaneStep(74));
  EXPECT_EQ(deal(400), 2u);
  lanes->Close(0, LaneStep(12));
  lanes->Taken(1, LaneStep(11), LaneStep(75));
  EXPECT_EQ(deal(5000), 1u) << "two steps in any case";
  lanes->Close(1, LaneStep(0));
  EXPECT_TRUE(lanes->AllClosed());
}

TEST(LaneBoundTest, DynamicLanesStopAtTheBytes) {
  Recorder recorder;
  FairShare fair(2, Window::kMost);
  const auto lanes = MakeDynamicLanes(2, recorder.Output(), 1000, &fair);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  const auto deal = [&](uint64_t bytes) {
    uint64_t dealt = 0;
    for (; lanes->RoomFor(1); ++dealt) lanes->Deal(Sized(lanes->dealt(), 1, bytes));
    return dealt;
  };
  EXPECT_EQ(deal(250), 8u);
  lanes->Taken(0, LaneStep(3), LaneStep(67));
  EXPECT_EQ(deal(250), 3u) << "whoever has room";
  lanes->Taken(1, LaneStep(4), LaneStep(68));
  EXPECT_EQ(deal(9000), 2u) << "two in any case";
}

// How many shares each lane has been sent.
struct Counter {
  uint64_t sent[2] = {0, 0};

  LaneOutput Output() {
    LaneOutput output;
    output.data = [this](int trainer, LaneStep, DealtStep, Position, const Share&) { ++sent[trainer]; };
    output.end = [](int, LaneStep, const Outcome&) {};
    output.recall = [](int) {};
    output.taken = [](int, uint64_t) {};
    return output;
  }
};

// Steps of 10 us and of 100: both are so quick that 5 ms would be a wide window. The slow one is told 64 and more as well.
TEST(FairShareTest, ASlowOneHoldsTwoBeyondItsPartOfThePace) {
  for (const uint64_t times : {2, 10, 100}) {
    Counter counter;
    FairShare fair(2, Window::kMost);
    const auto lanes = MakeDynamicLanes(2, counter.Output(), 1 << 20, &fair);
    for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(2));
    const auto deal = [&] {
      while (lanes->RoomFor(1)) lanes->Deal(Sized(lanes->dealt(), 1, 1));
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

TEST(FairShareTest, WhoStopsIsLeftTwoAndWhoGoesOnAgainGetsMore) {
  FairShare fair(3, 64);
  for (int i = 0; i < 1000; ++i) {
    for (const size_t lane : {0, 1}) fair.Take(lane);
  }
  EXPECT_GE(fair.Most(0), 64u);
  EXPECT_GE(fair.Most(1), 64u);
  EXPECT_EQ(fair.Most(2), 2u);
  for (int i = 0; i < 1000; ++i) {
    for (const size_t lane : {0, 1, 2}) fair.Take(lane);
  }
  EXPECT_GE(fair.Most(2), 60u);
}

// Each has its part of a window, so all of them together leave a slow one what one reader would.
TEST(FairShareTest, SeveralReadersDivideIt) {
  for (const uint64_t readers : {2, 4, 64, 100}) {
    FairShare fair(2, Window::kMost, readers);
    for (int i = 0; i < 10000; ++i) {
      fair.Take(0);
      if (i % 10 == 0) fair.Take(1);
    }
    EXPECT_GE(readers * fair.Most(0), 64u) << readers << " readers";
    EXPECT_LE(readers * fair.Most(1), 8 + 2 * readers) << readers << " readers";
  }
}

// An epoch's lanes are new, and what is known of their trainers is not.
TEST(FairShareTest, ASlowOneIsKnownInTheNextEpoch) {
  FairShare fair(2, Window::kMost);
  for (int i = 0; i < 1000; ++i) {
    fair.Take(0);
    if (i % 10 == 0) fair.Take(1);
  }
  Counter counter;
  const auto lanes = MakeDynamicLanes(2, counter.Output(), 1 << 20, &fair);
  lanes->Open(1, LaneStep(50));  // it is the first
  while (lanes->RoomFor(1)) lanes->Deal(Sized(lanes->dealt(), 1, 1));
  EXPECT_LE(counter.sent[1], 10u);
}

TEST(FairShareTest, ANumberOfStepsIsForSlowOnesToo) {
  Counter counter;
  const auto lanes = MakeDynamicLanes(2, counter.Output(), 0);
  for (int t = 0; t < 2; ++t) lanes->Open(t, LaneStep(64));
  for (uint64_t step = 1; step <= 500; ++step) {
    while (lanes->RoomFor(1)) lanes->Deal(Sized(lanes->dealt(), 1, 1));
    lanes->Taken(0, LaneStep(step), LaneStep(step + 64));
  }
  EXPECT_EQ(counter.sent[1], 64u);
}

// However trainers and sizes go, a lane holds its bytes, or one share more than it knew of, or two.
TEST(LaneBoundTest, RandomSizes) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    LaneBound bound;
    std::deque<uint64_t> held;
    for (int i = 0; i < 300; ++i) {
      const uint64_t bytes = random() % 400;
      if (random() % 2 == 0 && bound.RoomFor(1, 1000)) {
        bound.Put(bytes);
        held.push_back(bytes);
        uint64_t sum = 0;
        for (const uint64_t one : held) sum += one;
        EXPECT_EQ(bound.bytes(), sum);
        EXPECT_TRUE(held.size() <= 2 || sum <= 1000 + 400) << sum;
      } else if (!held.empty()) {
        bound.Take(held.front());
        held.pop_front();
      }
    }
  }
}

}  // namespace
}  // namespace hvdata
