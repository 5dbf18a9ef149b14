// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

class StaticLanesTest : public testing::Test {
 protected:
  void Make(int trainers, uint64_t limit, bool gated = false) {
    trainers_ = trainers;
    lanes_ = StaticLanesOf(trainers, limit, gated, &recorder_);
  }
  void Deal(uint64_t steps = 1) {
    for (uint64_t i = 0; i < steps; ++i) lanes_->Deal(MakeStep(lanes_->dealt(), trainers_));
  }
  Texts Out() { return recorder_.Take(); }

  int trainers_ = 0;
  Recorder recorder_;
  std::shared_ptr<Lanes> lanes_;
};

TEST_F(StaticLanesTest, AStepIsReleasedWhole) {
  Make(3, 1);
  for (int t = 0; t < 3; ++t) lanes_->Open(t, LaneStep(1));
  EXPECT_EQ(Out(), Texts());
  ASSERT_TRUE(lanes_->HasCredit(1));
  Deal();
  EXPECT_EQ(Out(), (Texts{"0<0:0", "1<0:0", "2<0:0"}));
  EXPECT_FALSE(lanes_->HasCredit(1));
}

TEST_F(StaticLanesTest, TheSlowestLaneHoldsTheOthers) {
  Make(2, 2);
  lanes_->Open(0, LaneStep(2));
  lanes_->Open(1, LaneStep(2));
  Deal(2);
  EXPECT_FALSE(lanes_->HasCredit(1));
  lanes_->Taken(0, LaneStep(2), LaneStep(4));
  EXPECT_FALSE(lanes_->HasCredit(1));
  EXPECT_EQ(lanes_->WaitsFor(0), std::vector<int>{1});
  EXPECT_EQ(lanes_->Untaken().size(), 2u);
  lanes_->Taken(1, LaneStep(1), LaneStep(3));
  EXPECT_TRUE(lanes_->HasCredit(1));
  EXPECT_EQ(lanes_->WaitsFor(0), std::vector<int>());
  EXPECT_EQ(lanes_->Untaken().size(), 1u);
}

TEST_F(StaticLanesTest, RoomForSeveralSteps) {
  Make(3, 8);
  lanes_->Skip(1, Position(2));  // which has had two of these steps in an earlier run
  for (int t = 0; t < 3; ++t) lanes_->Open(t, LaneStep(8));
  Deal(8);
  EXPECT_EQ(lanes_->WithoutCredit(1), (std::vector<int>{0, 2}));
  EXPECT_EQ(lanes_->WithoutCredit(2), (std::vector<int>{0, 2}));
  EXPECT_EQ(lanes_->WithoutCredit(3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(lanes_->LimitFor(0, 3).n, 11u);
  EXPECT_EQ(lanes_->LimitFor(1, 3).n, 9u) << "in its own counting";
  lanes_->Taken(0, LaneStep(3), LaneStep(11));
  lanes_->Taken(1, LaneStep(1), LaneStep(9));
  lanes_->Taken(2, LaneStep(2), LaneStep(10));
  EXPECT_TRUE(lanes_->HasCredit(2));
  EXPECT_FALSE(lanes_->HasCredit(3));
  EXPECT_EQ(lanes_->WithoutCredit(3), std::vector<int>{2});
  lanes_->Close(2, LaneStep(2));
  EXPECT_TRUE(lanes_->HasCredit(3));
}

TEST_F(StaticLanesTest, ALateOpenerGetsTheWindowAndTheEnd) {
  Make(2, 2);
  lanes_->Open(0, LaneStep(2));
  Deal(2);
  lanes_->Taken(0, LaneStep(2), LaneStep(4));
  EXPECT_FALSE(lanes_->HasCredit(1));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<1:1", "0<end@2"}));
  lanes_->Open(1, LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"1<0:0", "1<1:1", "1<end@2"}));
}

TEST_F(StaticLanesTest, ALaneWithLessRoomGetsTheRestAndThenTheEnd) {
  Make(2, 3);
  lanes_->Open(0, LaneStep(3));
  Deal(3);
  lanes_->Open(1, LaneStep(1));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<1:1", "0<2:2", "1<0:0", "0<end@3"}));
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"1<1:1"}));
  lanes_->Taken(1, LaneStep(2), LaneStep(3));
  EXPECT_EQ(Out(), (Texts{"1<2:2", "1<end@3"}));
}

TEST_F(StaticLanesTest, TheEndOfAnEmptyEpochNeedsNoRoom) {
  Make(2, 0);
  lanes_->Open(0, LaneStep(0));
  lanes_->Finish({});
  lanes_->Open(1, LaneStep(0));
  EXPECT_EQ(Out(), (Texts{"0<end@0", "1<end@0"}));
}

TEST_F(StaticLanesTest, AnErrorComesInPlaceOfTheFailedStepAndOnce) {
  Make(2, 2);
  lanes_->Open(0, LaneStep(2));
  lanes_->Open(1, LaneStep(2));
  Deal();
  lanes_->Finish({kInternal, "broken"});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "1<0:0", "0<end@1!13 broken", "1<end@1!13 broken"}));
  EXPECT_FALSE(lanes_->HasCredit(1));
  lanes_->Taken(0, LaneStep(1), LaneStep(3));
  EXPECT_EQ(Out(), Texts());
}

TEST_F(StaticLanesTest, AClosedLaneHoldsNobodyAndGetsNothing) {
  Make(3, 1);
  for (int t = 0; t < 2; ++t) lanes_->Open(t, LaneStep(1));
  Deal();
  Out();
  lanes_->Close(0, LaneStep(0));
  lanes_->Close(2, LaneStep(0));  // has never opened
  EXPECT_FALSE(lanes_->HasCredit(1));
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  EXPECT_TRUE(lanes_->HasCredit(1));
  Deal();
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"1<1:1", "1<end@2"}));
  EXPECT_FALSE(lanes_->AllClosed());
  lanes_->Close(1, LaneStep(2));
  EXPECT_TRUE(lanes_->AllClosed());
  EXPECT_EQ(lanes_->Untaken().size(), 0u);
}

TEST_F(StaticLanesTest, NoRoomOnceAllAreClosed) {
  Make(1, 2);
  lanes_->Open(0, LaneStep(2));
  lanes_->Close(0, LaneStep(0));
  EXPECT_FALSE(lanes_->HasCredit(1));
}

TEST_F(StaticLanesTest, AResumedLanePassesOverWhatItHad) {
  Make(2, 1);
  lanes_->Skip(0, Position(2));
  lanes_->Open(0, LaneStep(1));
  lanes_->Open(1, LaneStep(1));
  Deal();
  EXPECT_EQ(Out(), (Texts{"1<0:0"}));
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  Deal();
  EXPECT_EQ(Out(), (Texts{"1<1:1"}));
  lanes_->Taken(1, LaneStep(2), LaneStep(3));
  Deal();
  EXPECT_EQ(recorder_.Dealt(), (std::vector<uint64_t>{0, 1, 2, 2})) << "it is counted over all lanes";
  EXPECT_EQ(Out(), (Texts{"0<0:2", "1<2:2"})) << "its own count begins with the first step that is new to it";
  EXPECT_FALSE(lanes_->HasCredit(1));
  lanes_->Taken(0, LaneStep(1), LaneStep(2));
  lanes_->Taken(1, LaneStep(3), LaneStep(4));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"0<end@1", "1<end@3"}));
  EXPECT_EQ(lanes_->Untaken().size(), 0u);
}

TEST_F(StaticLanesTest, AResumedLaneMayOpenLate) {
  Make(2, 2);
  lanes_->Skip(1, Position(2));
  lanes_->Open(0, LaneStep(2));
  Deal(2);
  lanes_->Taken(0, LaneStep(2), LaneStep(4));
  Deal();
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<1:1", "0<2:2"}));
  lanes_->Open(1, LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"1<0:2"}));
}

TEST_F(StaticLanesTest, PositionsCountElementsNotSteps) {
  Make(2, 4);
  lanes_->Skip(0, Position(4));  // two steps of two elements
  lanes_->Open(0, LaneStep(4));
  lanes_->Deal(MakeStep(0, 2, 2));
  lanes_->Deal(MakeStep(2, 2, 2));
  EXPECT_EQ(Out(), Texts());
  lanes_->Deal(MakeStep(4, 2, 2));
  EXPECT_EQ(Out(), (Texts{"0<0:4"}));
}

// What a trainer says is not believed beyond what was sent to it.
TEST_F(StaticLanesTest, NobodyHasTakenWhatWasNotSent) {
  Make(2, 2);
  lanes_->Open(0, LaneStep(2));
  lanes_->Open(1, LaneStep(2));
  Deal(2);
  Out();
  lanes_->Taken(0, LaneStep(100), LaneStep(~0ull));
  lanes_->Taken(1, LaneStep(~0ull), LaneStep(4));
  EXPECT_EQ(lanes_->Untaken().size(), 0u);
  Deal();
  EXPECT_EQ(Out(), (Texts{"0<2:2", "1<2:2"})) << "nothing is passed over";
  EXPECT_EQ(lanes_->Untaken().size(), 1u);
  lanes_->Close(0, LaneStep(~0ull));
  EXPECT_EQ(lanes_->Untaken().size(), 1u) << "the other has not taken it";
  lanes_->Recalled(1, LaneStep(9), LaneStep(9));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"1<end@3"}));
}

TEST_F(StaticLanesTest, ALimitWithoutEndStaysSoWhereALaneGoesOn) {
  Make(1, 2);
  lanes_->Skip(0, Position(2));
  lanes_->Open(0, LaneStep(~0ull));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(lanes_->HasCredit(1));
    Deal();
  }
  EXPECT_EQ(Out(), (Texts{"0<0:2"}));
}

// Trainers at random speeds, some of which close early, against what the contract says.
class StaticSimulation : public testing::TestWithParam<unsigned> {};

TEST_P(StaticSimulation, EveryoneGetsEveryStepOnceInOrderAndBounded) {
  std::mt19937 random(GetParam());
  const auto below = [&](uint64_t n) { return static_cast<uint64_t>(random() % n); };
  const int n = 1 + static_cast<int>(below(6));
  const uint64_t prefetch = 1 + below(4), steps = below(40);
  struct Trainer {
    bool open = false, closed = false, ended = false;
    uint64_t skip = 0, taken = 0;
    uint64_t leaves_after = ~0ull;
    std::deque<uint64_t> queue;
  };
  std::vector<Trainer> trainers(static_cast<size_t>(n));
  std::shared_ptr<Lanes> lanes;
  LaneCalls output;
  output.data = [&](int t, LaneStep step, DealtStep dealt, const Step& step_dealt) {
    const uint64_t lane_step = step.n;
    Trainer& trainer = trainers[static_cast<size_t>(t)];
    ASSERT_TRUE(trainer.open && !trainer.closed && !trainer.ended);
    ASSERT_EQ(TokenOf(step_dealt.ShareOf(t).bundle).trainer, t);
    ASSERT_EQ(TokenOf(step_dealt.ShareOf(t).bundle).element, trainer.skip + lane_step);
    ASSERT_EQ(dealt.n, trainer.skip + lane_step);
    ASSERT_EQ(step_dealt.position().n, dealt.n + 1);
    ASSERT_EQ(lane_step, trainer.taken + trainer.queue.size());
    trainer.queue.push_back(lane_step);
    ASSERT_LE(trainer.queue.size(), prefetch);
  };
  output.end = [&](int t, LaneStep step, const Outcome& outcome) {
    Trainer& trainer = trainers[static_cast<size_t>(t)];
    ASSERT_TRUE(outcome.ok() && !trainer.ended);
    trainer.ended = true;
    ASSERT_EQ(step.n, trainer.taken + trainer.queue.size());
  };
  output.recall = [&](int) { FAIL() << "static lanes are never recalled"; };
  lanes = StaticLanesOf(n, prefetch, false, &output);
  for (size_t t = 0; t < trainers.size(); ++t) {
    if (below(3) == 0) lanes->Skip(static_cast<int>(t), Position(trainers[t].skip = below(steps + 1)));
    if (below(4) == 0) trainers[t].leaves_after = below(steps + 1);
  }
  int idle = 0;
  while (!lanes->AllClosed() && !HasFatalFailure()) {
    ASSERT_LT(++idle, 100000) << "no progress";
    if (!lanes->finished() && lanes->HasCredit(1) && below(2)) {
      if (lanes->dealt() < steps) {
        lanes->Deal(MakeStep(lanes->dealt(), n));
      } else {
        lanes->Finish({});
      }
    }
    const size_t pick = below(trainers.size());
    const int t = static_cast<int>(pick);
    Trainer& trainer = trainers[pick];
    if (trainer.closed) continue;
    if (!trainer.open) {
      trainer.open = true;
      lanes->Open(t, LaneStep(prefetch));
    } else if (trainer.taken >= trainer.leaves_after) {
      trainer.closed = true;
      lanes->Close(t, LaneStep(trainer.taken));
    } else if (!trainer.queue.empty()) {
      trainer.queue.pop_front();
      ++trainer.taken;
      lanes->Taken(t, LaneStep(trainer.taken), LaneStep(trainer.taken + prefetch));
    } else if (trainer.ended) {
      ASSERT_EQ(trainer.taken, steps - trainer.skip);
      trainer.closed = true;
      lanes->Close(t, LaneStep(trainer.taken));
    }
    uint64_t slowest = ~0ull;
    for (const Trainer& other : trainers) {
      if (!other.closed) slowest = std::min(slowest, other.skip + other.taken);
    }
    if (slowest != ~0ull) {
      ASSERT_LE(lanes->dealt(), slowest + prefetch) << "ahead of the slowest rank";
    }
    ASSERT_LE(lanes->Untaken().size(), prefetch);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StaticSimulation, testing::Range(0u, 300u));

}  // namespace
}  // namespace hvdata
