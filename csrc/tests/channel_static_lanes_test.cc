// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

class StaticLanesTest : public testing::Test {
 protected:
  void Make(int trainers, uint64_t limit, bool gated = false) {
    trainers_ = trainers;
    lanes_ = StaticLanesOf(trainers, limit, gated, &recorder_);
  }
  void OpenAll(uint64_t limit) {
    for (int t = 0; t < trainers_; ++t) lanes_->Open(t, LaneStep(limit));
  }
  void Deal(uint64_t steps = 1) {
    for (uint64_t i = 0; i < steps; ++i) lanes_->Deal(MakeStep(lanes_->dealt(), trainers_));
  }
  Lines Out() { return recorder_.Take(); }

  int trainers_ = 0;
  Recorder recorder_;
  std::shared_ptr<Lanes> lanes_;
};

TEST_F(StaticLanesTest, RoomForSeveralSteps) {
  Make(3, 8);
  lanes_->Skip(1, Position(2));  // it has taken two of these steps in an earlier run
  OpenAll(8);
  Deal(8);
  EXPECT_EQ(lanes_->WaitsFor(-1, 1), (std::vector<int>{0, 2}));
  EXPECT_EQ(lanes_->WaitsFor(-1, 2), (std::vector<int>{0, 2}));
  EXPECT_EQ(lanes_->WaitsFor(-1, 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(lanes_->LimitFor(0, 3).n, 11u);
  EXPECT_EQ(lanes_->LimitFor(1, 3).n, 9u) << "in its own counting";
  lanes_->Taken(0, LaneStep(3), LaneStep(11));
  lanes_->Taken(1, LaneStep(1), LaneStep(9));
  lanes_->Taken(2, LaneStep(2), LaneStep(10));
  EXPECT_TRUE(lanes_->HasCredit(2));
  EXPECT_FALSE(lanes_->HasCredit(3));
  EXPECT_EQ(lanes_->WaitsFor(-1, 3), std::vector<int>{2});
  lanes_->Close(2, LaneStep(2));
  EXPECT_TRUE(lanes_->HasCredit(3));
}

// A trainer's numbers are accepted only up to the steps that were sent to it.
TEST_F(StaticLanesTest, NobodyHasTakenWhatWasNotSent) {
  Make(2, 2);
  OpenAll(2);
  Deal(2);
  Out();
  lanes_->Taken(0, LaneStep(100), LaneStep(~0ull));
  lanes_->Taken(1, LaneStep(~0ull), LaneStep(4));
  EXPECT_EQ(lanes_->Untaken().size(), 0u);
  Deal();
  EXPECT_EQ(Out(), (Lines{"0<2:2", "1<2:2"})) << "nothing is passed over";
  EXPECT_EQ(lanes_->Untaken().size(), 1u);
  lanes_->Close(0, LaneStep(~0ull));
  EXPECT_EQ(lanes_->Untaken().size(), 1u) << "the other has not taken it";
  lanes_->Recalled(1, LaneStep(9), LaneStep(9));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Lines{"1<end@3"}));
}

TEST_F(StaticLanesTest, ALimitWithoutEndStaysSoWhereALaneGoesOn) {
  Make(1, 2);
  lanes_->Skip(0, Position(2));
  lanes_->Open(0, LaneStep(~0ull));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(lanes_->HasCredit(1));
    Deal();
  }
  EXPECT_EQ(Out(), (Lines{"0<0:2"}));
}

// A reader that keeps in step with others: its lanes are gated.
TEST_F(StaticLanesTest, AStepWaitsUntilAllReadersHaveIt) {
  Make(2, 2, true);
  OpenAll(2);
  ASSERT_TRUE(lanes_->HasCredit(1));
  Deal(2);
  EXPECT_EQ(Out(), Lines());
  EXPECT_FALSE(lanes_->HasCredit(1)) << "what waits here counts";
  EXPECT_EQ(lanes_->Untaken().size(), 2u) << "and is saved";
  lanes_->Allow(DealtStep(1));
  EXPECT_EQ(Out(), (Lines{"0<0:0", "1<0:0"}));
  lanes_->Allow(DealtStep(0));  // one that was overtaken
  lanes_->Taken(0, LaneStep(1), LaneStep(3));
  lanes_->Taken(1, LaneStep(1), LaneStep(3));
  EXPECT_TRUE(lanes_->HasCredit(1));
  EXPECT_EQ(lanes_->Untaken().size(), 1u);
  EXPECT_EQ(Out(), Lines());
  lanes_->Allow(DealtStep(3));
  EXPECT_EQ(Out(), (Lines{"0<1:1", "1<1:1"}));
  Deal(2);
  EXPECT_EQ(Out(), (Lines{"0<2:2", "1<2:2"})) << "a step that is allowed in advance is sent at once";
  lanes_->EndAt(DealtStep(3), {});
  EXPECT_EQ(Out(), (Lines{"0<end@3", "1<end@3"})) << "without the step that others have not";
  for (int t = 0; t < 2; ++t) lanes_->Taken(t, LaneStep(3), LaneStep(5));
  EXPECT_EQ(Out(), Lines());
  EXPECT_EQ(lanes_->Untaken().size(), 1u) << "no trainer has taken it: a checkpoint holds it";
}

TEST_F(StaticLanesTest, FillersStandForStepsThatOthersHave) {
  Make(2, 2, true);
  OpenAll(2);
  Deal();
  lanes_->Allow(DealtStep(2));
  EXPECT_EQ(Out(), (Lines{"0<0:0", "1<0:0"})) << "step 1 is still to come from the pipeline";
  lanes_->Fill(MakeStep(99, 2));
  EXPECT_EQ(Out(), (Lines{"0<1:99", "1<1:99"}));
  lanes_->Allow(DealtStep(4));
  EXPECT_EQ(Out(), Lines()) << "fillers keep to the window too";
  lanes_->Taken(0, LaneStep(2), LaneStep(4));
  EXPECT_EQ(Out(), (Lines{"0<2:99", "0<3:99"}));
  EXPECT_EQ(lanes_->Untaken().size(), 1u) << "of the elements, trainer 1 has not taken its first";
  lanes_->Taken(1, LaneStep(2), LaneStep(4));
  EXPECT_EQ(lanes_->Untaken().size(), 0u) << "a filler is no element";
  EXPECT_EQ(Out(), (Lines{"1<2:99", "1<3:99"}));
}

// Trainers at random speeds, against the contract. Some have taken steps in an earlier run, open late, close early or
// never open. Every other job is gated: the steps of other readers are allowed at random, and their epoch may be
// shorter or longer.
class StaticSimulation : public testing::TestWithParam<unsigned> {};

TEST_P(StaticSimulation, EveryoneGetsEveryStepOnceInOrderAndBounded) {
  std::mt19937 random(GetParam());
  const auto below = [&](uint64_t n) { return static_cast<uint64_t>(random() % n); };
  const bool gated = GetParam() % 2 == 1;
  const int n = 1 + static_cast<int>(below(6));
  const uint64_t prefetch = 1 + below(4), mine = below(40), each = 1 + below(2), filler = 1000;
  const uint64_t end = gated ? below(40) : mine;
  const bool fills = gated && (end > mine || below(2) == 0);
  const Outcome outcome = below(4) == 0 ? Outcome(kInternal, "broken") : Outcome();
  struct Trainer {
    bool open = false, closed = false, ended = false;
    uint64_t skip = 0, sent = 0, taken = 0;
    uint64_t leaves_after = ~0ull;
  };
  std::vector<Trainer> trainers(static_cast<size_t>(n));
  uint64_t allowed = gated ? 0 : ~0ull;
  bool filled = false, over = false;
  LaneCalls output;
  output.data = [&](int t, LaneStep step, DealtStep dealt, const Step& step_dealt) {
    Trainer& trainer = trainers[static_cast<size_t>(t)];
    ASSERT_TRUE(trainer.open && !trainer.closed && !trainer.ended);
    ASSERT_EQ(step.n, trainer.sent++);
    ASSERT_EQ(dealt.n, trainer.skip + step.n);
    ASSERT_LT(dealt.n, allowed);
    const Token& token = TokenOf(step_dealt.ShareOf(t).bundle);
    ASSERT_EQ(token.trainer, t);
    ASSERT_EQ(token.element, dealt.n < mine ? dealt.n * each : filler) << "a filler only after the last element";
    ASSERT_LE(trainer.sent - trainer.taken, prefetch);
  };
  output.end = [&](int t, LaneStep step, const Outcome& ended) {
    Trainer& trainer = trainers[static_cast<size_t>(t)];
    ASSERT_TRUE(over && !std::exchange(trainer.ended, true));
    ASSERT_EQ(step.n, trainer.sent);
    ASSERT_EQ(ended.message, outcome.message);
  };
  output.recall = [&](int) { FAIL() << "static lanes are never recalled"; };
  const std::shared_ptr<Lanes> lanes = StaticLanesOf(n, prefetch, gated, &output);
  for (size_t t = 0; t < trainers.size(); ++t) {
    Trainer& trainer = trainers[t];
    // A resumed epoch begins at the position of the trainer that is farthest behind.
    if (t > 0 && below(3) == 0) trainer.skip = below(std::min(mine, end) + 1);
    if (trainer.skip > 0) lanes->Skip(static_cast<int>(t), Position(trainer.skip * each));
    if (below(4) == 0) trainer.leaves_after = below(end + 1);
  }
  for (int round = 0; !lanes->AllClosed() && !HasFatalFailure(); ++round) {
    ASSERT_LT(round, 100000) << "no progress";
    if (!over && lanes->HasCredit(1) && lanes->dealt() < mine && below(2) == 0)
      lanes->Deal(MakeStep(lanes->dealt() * each, n, each));
    if (fills && !filled && lanes->dealt() == mine && below(2) == 0) {
      filled = true;
      lanes->Fill(MakeStep(filler, n));
    }
    const uint64_t reach = filled ? end : std::min(end, lanes->dealt());
    if (gated && !over && allowed < reach && below(3) == 0)
      lanes->Allow(DealtStep(allowed += 1 + below(reach - allowed)));
    if (!over && reach == end && (end < mine || filled || lanes->dealt() == mine) && below(4) == 0) {
      over = true;
      allowed = std::max(allowed, end);
      if (gated)
        lanes->EndAt(DealtStep(end), outcome);
      else
        lanes->Finish(outcome);
    }
    const size_t pick = below(trainers.size());
    const int t = static_cast<int>(pick);
    Trainer& trainer = trainers[pick];
    if (trainer.closed) continue;
    const bool done = trainer.ended && trainer.taken == trainer.sent;
    if (done) {
      ASSERT_EQ(trainer.taken, end - trainer.skip);
    }
    if (done || trainer.taken >= trainer.leaves_after) {
      trainer.closed = true;
      lanes->Close(t, LaneStep(trainer.taken));
    } else if (!trainer.open) {
      trainer.open = true;
      lanes->Open(t, LaneStep(trainer.skip == end ? 0 : 1 + below(prefetch)));
    } else if (trainer.taken < trainer.sent) {
      ++trainer.taken;
      lanes->Taken(t, LaneStep(trainer.taken), LaneStep(trainer.taken + prefetch));
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
  EXPECT_FALSE(lanes->HasCredit(1));
}

INSTANTIATE_TEST_SUITE_P(Seeds, StaticSimulation, testing::Range(0u, 600u));

}  // namespace
}  // namespace hvdata
