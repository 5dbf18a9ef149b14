// SPDX-License-Identifier: Apache-2.0
// Static lanes of a reader that keeps in step with others.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

class GatedLanesTest : public testing::Test {
 protected:
  void Make(int trainers, uint64_t limit) {
    trainers_ = trainers;
    lanes_ = StaticLanesOf(trainers, limit, true, &recorder_);
    for (int t = 0; t < trainers; ++t) lanes_->Open(t, LaneStep(limit));
  }
  void Deal(uint64_t steps = 1) {
    for (uint64_t i = 0; i < steps; ++i) lanes_->Deal(MakeStep(lanes_->dealt(), trainers_));
  }
  Texts Out() { return recorder_.Take(); }

  int trainers_ = 0;
  Recorder recorder_;
  std::shared_ptr<Lanes> lanes_;
};

TEST_F(GatedLanesTest, AStepWaitsUntilAllReadersHaveIt) {
  Make(2, 2);
  ASSERT_TRUE(lanes_->HasCredit(1));
  Deal(2);
  EXPECT_EQ(Out(), Texts());
  EXPECT_FALSE(lanes_->HasCredit(1)) << "what waits here counts";
  EXPECT_EQ(lanes_->Untaken().size(), 2u) << "and is saved";
  lanes_->Allow(DealtStep(1));
  EXPECT_EQ(Out(), (Texts{"0<0:0", "1<0:0"}));
  lanes_->Allow(DealtStep(0));  // one that was overtaken
  lanes_->Taken(0, LaneStep(1), LaneStep(3));
  lanes_->Taken(1, LaneStep(1), LaneStep(3));
  EXPECT_TRUE(lanes_->HasCredit(1));
  EXPECT_EQ(lanes_->Untaken().size(), 1u);
  EXPECT_EQ(Out(), Texts());
  lanes_->Allow(DealtStep(2));
  EXPECT_EQ(Out(), (Texts{"0<1:1", "1<1:1"}));
}

TEST_F(GatedLanesTest, WhatIsAllowedInAdvanceGoesOutAtOnce) {
  Make(1, 3);
  lanes_->Allow(DealtStep(2));
  EXPECT_EQ(Out(), Texts());
  Deal(3);
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<1:1"}));
}

TEST_F(GatedLanesTest, AnEndLeavesOutWhatOthersHaveNot) {
  Make(2, 3);
  Deal(3);
  lanes_->Allow(DealtStep(1));
  Out();
  lanes_->EndAt(DealtStep(2), {});
  EXPECT_EQ(Out(), (Texts{"0<1:1", "0<end@2", "1<1:1", "1<end@2"}));
  EXPECT_TRUE(lanes_->finished());
  EXPECT_FALSE(lanes_->HasCredit(1));
  for (int t = 0; t < 2; ++t) lanes_->Taken(t, LaneStep(2), LaneStep(5));
  EXPECT_EQ(Out(), Texts());
  EXPECT_EQ(lanes_->Untaken().size(), 1u) << "nobody has taken it: a checkpoint holds it";
}

TEST_F(GatedLanesTest, AnErrorComesAfterTheStepsBeforeIt) {
  Make(1, 1);
  Deal(1);
  lanes_->EndAt(DealtStep(1), {kInternal, "broken"});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<end@1!13 broken"}));
}

TEST_F(GatedLanesTest, FillersStandForStepsThatOthersHave) {
  Make(2, 2);
  Deal(1);
  lanes_->Allow(DealtStep(2));
  EXPECT_EQ(Out(), (Texts{"0<0:0", "1<0:0"})) << "step 1 is still to come from the pipeline";
  lanes_->Fill(MakeStep(99, 2));
  EXPECT_EQ(Out(), (Texts{"0<1:99", "1<1:99"}));
  lanes_->Allow(DealtStep(4));
  EXPECT_EQ(Out(), Texts()) << "fillers keep to the window too";
  lanes_->Taken(0, LaneStep(2), LaneStep(4));
  EXPECT_EQ(Out(), (Texts{"0<2:99", "0<3:99"}));
  EXPECT_EQ(lanes_->Untaken().size(), 1u) << "of the elements, trainer 1 has not taken its first";
  lanes_->Taken(1, LaneStep(2), LaneStep(4));
  EXPECT_EQ(lanes_->Untaken().size(), 0u) << "a filler is no element";
  EXPECT_EQ(Out(), (Texts{"1<2:99", "1<3:99"}));
  lanes_->EndAt(DealtStep(4), {});
  EXPECT_EQ(Out(), (Texts{"0<end@4", "1<end@4"}));
}

TEST_F(GatedLanesTest, AReaderWithoutAnyElementGivesFillersOnly) {
  Make(1, 2);
  lanes_->Fill(MakeStep(99, 1));
  EXPECT_EQ(Out(), Texts());
  lanes_->Allow(DealtStep(1));
  lanes_->EndAt(DealtStep(1), {});
  EXPECT_EQ(Out(), (Texts{"0<0:99", "0<end@1"}));
}

TEST_F(GatedLanesTest, ALateOpenerAndOneThatClosedAreNoGate) {
  lanes_ = StaticLanesOf(2, 1, true, &recorder_);
  trainers_ = 2;
  lanes_->Open(0, LaneStep(1));
  Deal(1);
  lanes_->Allow(DealtStep(1));
  EXPECT_EQ(Out(), (Texts{"0<0:0"}));
  lanes_->Open(1, LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"1<0:0"}));
  lanes_->Close(1, LaneStep(0));
  lanes_->Taken(0, LaneStep(1), LaneStep(2));
  ASSERT_TRUE(lanes_->HasCredit(1));
  lanes_->EndAt(DealtStep(1), {});
  EXPECT_EQ(Out(), (Texts{"0<end@1"}));
}

TEST_F(GatedLanesTest, AResumedLanePassesOverWhatItHadGateOrNot) {
  lanes_ = StaticLanesOf(2, 2, true, &recorder_);
  trainers_ = 2;
  lanes_->Skip(0, Position(1));
  for (int t = 0; t < 2; ++t) lanes_->Open(t, LaneStep(2));
  Deal(2);
  lanes_->Allow(DealtStep(1));
  EXPECT_EQ(Out(), (Texts{"1<0:0"}));
  lanes_->Allow(DealtStep(2));
  EXPECT_EQ(Out(), (Texts{"0<0:1", "1<1:1"}));
}

// Trainers at random speeds and a gate that moves at random.
class GatedSimulation : public testing::TestWithParam<unsigned> {};

TEST_P(GatedSimulation, EveryoneGetsWhatIsAllowedOnceInOrderAndBounded) {
  std::mt19937 random(GetParam());
  const auto below = [&](uint64_t n) { return static_cast<uint64_t>(random() % n); };
  const size_t n = 1 + below(4);
  const uint64_t prefetch = 1 + below(4), mine = below(20), end = below(20);
  const bool fills = end > mine || below(2) == 0;
  uint64_t allowed = 0;
  bool over = false;
  struct Trainer {
    bool ended = false, closed = false;
    uint64_t sent = 0, taken = 0;
  };
  std::vector<Trainer> trainers(n);
  LaneCalls output;
  output.data = [&](int t, LaneStep lane_step, DealtStep dealt, const Step& step_dealt) {
    const uint64_t step = lane_step.n;
    Trainer& trainer = trainers[static_cast<size_t>(t)];
    ASSERT_EQ(step, trainer.sent++);
    ASSERT_EQ(dealt.n, step);
    ASSERT_LT(step, allowed);
    ASSERT_EQ(TokenOf(step_dealt.ShareOf(t).bundle).trainer, t);
    ASSERT_EQ(TokenOf(step_dealt.ShareOf(t).bundle).element, step < mine ? step : 1000)
        << "a filler only where the elements are over";
    ASSERT_LE(trainer.sent - trainer.taken, prefetch);
  };
  output.end = [&](int t, LaneStep step, const Outcome&) {
    ASSERT_TRUE(over && !trainers[static_cast<size_t>(t)].ended);
    ASSERT_EQ(step.n, end);
    trainers[static_cast<size_t>(t)].ended = true;
  };
  const std::shared_ptr<Lanes> lanes = StaticLanesOf(static_cast<int>(n), prefetch, true, &output);
  for (size_t t = 0; t < n; ++t) lanes->Open(static_cast<int>(t), LaneStep(prefetch));
  bool filled = false;
  for (int round = 0; !lanes->AllClosed(); ++round) {
    ASSERT_LT(round, 100000) << "no progress";
    ASSERT_FALSE(HasFatalFailure());
    if (lanes->HasCredit(1) && below(2) && lanes->dealt() < mine)
      lanes->Deal(MakeStep(lanes->dealt(), static_cast<int>(n)));
    if (fills && !filled && lanes->dealt() == mine && below(2)) {
      filled = true;
      lanes->Fill(MakeStep(1000, static_cast<int>(n)));
    }
    const uint64_t reach = filled ? end : std::min(end, lanes->dealt());
    if (allowed < reach && below(3) == 0) lanes->Allow(DealtStep(allowed += 1 + below(reach - allowed)));
    if (!over && allowed == end && (end < mine || filled || lanes->dealt() == mine) && below(2)) {
      over = true;
      lanes->EndAt(DealtStep(end), {});
    }
    const size_t pick = below(n);
    Trainer& trainer = trainers[pick];
    if (trainer.closed) continue;
    if (trainer.taken < trainer.sent) {
      ++trainer.taken;
      lanes->Taken(static_cast<int>(pick), LaneStep(trainer.taken), LaneStep(trainer.taken + prefetch));
    } else if (trainer.ended) {
      trainer.closed = true;
      lanes->Close(static_cast<int>(pick), LaneStep(trainer.taken));
    }
    ASSERT_LE(lanes->Untaken().size(), prefetch);
  }
  for (const Trainer& trainer : trainers) EXPECT_EQ(trainer.taken, end);
}

INSTANTIATE_TEST_SUITE_P(Seeds, GatedSimulation, testing::Range(0u, 300u));

}  // namespace
}  // namespace hvdata
