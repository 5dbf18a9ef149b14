// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <utility>

#include "channel/trainer_epoch.h"
#include "channel_job.h"
#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

class DynamicLanesTest : public testing::Test {
 protected:
  void Make(int trainers) { lanes_ = DynamicLanesOf(trainers, &recorder_); }
  void Deal(uint64_t elements = 1) {
    for (uint64_t i = 0; i < elements; ++i) lanes_->Deal(MakeStep(lanes_->dealt(), 0));
  }
  Lines Out() { return recorder_.Take(); }

  Recorder recorder_;
  std::shared_ptr<Lanes> lanes_;
};

TEST_F(DynamicLanesTest, TheLaneThatHoldsFewestComesFirst) {
  Make(3);
  for (int t = 0; t < 3; ++t) lanes_->Open(t, LaneStep(2));
  Deal(4);
  EXPECT_EQ(Out(), (Lines{"0<0:0", "1<0:1", "2<0:2", "0<1:3"}));
  lanes_->Taken(2, LaneStep(1), LaneStep(3));
  EXPECT_EQ(Out(), (Lines{"2 took 2"}));
  Deal(2);
  EXPECT_EQ(Out(), (Lines{"2<1:4", "1<1:5"})) << "among equals, the one served longest ago";
  ASSERT_TRUE(lanes_->HasCredit(1));
  Deal();
  EXPECT_EQ(Out(), (Lines{"2<2:6"}));
  EXPECT_FALSE(lanes_->HasCredit(1));
}

TEST_F(DynamicLanesTest, WhatAClosedLaneHeldGoesToTheOthersOldestFirst) {
  Make(2);
  lanes_->Open(0, LaneStep(3));
  Deal(3);
  lanes_->Open(1, LaneStep(3));
  Out();
  lanes_->Close(0, LaneStep(1));
  EXPECT_EQ(Out(), (Lines{"0 took 0", "1<0:1", "1<1:2"}));
  EXPECT_TRUE(lanes_->HasCredit(1));
}

TEST_F(DynamicLanesTest, NothingIsPulledWhileSomethingWaits) {
  Make(2);
  lanes_->Open(0, LaneStep(2));
  Deal(2);
  lanes_->Open(1, LaneStep(1));
  lanes_->Close(0, LaneStep(0));
  EXPECT_FALSE(lanes_->HasCredit(1)) << "element 1 has no lane yet";
}

// A trainer's numbers are accepted only up to the steps that were sent to it.
TEST_F(DynamicLanesTest, NobodyHasTakenWhatWasNotSent) {
  Recorder recorder;
  const std::shared_ptr<Lanes> lanes = DynamicLanesOf(2, &recorder);
  lanes->Open(0, LaneStep(2));
  for (uint64_t k = 0; k < 2; ++k) lanes->Deal(MakeStep(k, 0));
  recorder.Take();
  lanes->Taken(0, LaneStep(100), LaneStep(3));
  EXPECT_EQ(recorder.Take(), (Lines{"0 took 0", "0 took 1"}));
  lanes->Deal(MakeStep(2, 0));
  EXPECT_EQ(recorder.Take(), (Lines{"0<2:2"})) << "nothing is passed over";
  lanes->Recalled(0, LaneStep(~0ull), LaneStep(~0ull));  // there was no recall
  EXPECT_EQ(recorder.Take(), Lines());
  lanes->Taken(0, LaneStep(~0ull), LaneStep(4));
  EXPECT_EQ(recorder.Take(), (Lines{"0 took 2"}));
  lanes->Deal(MakeStep(3, 0));
  EXPECT_EQ(recorder.Take(), (Lines{"0<3:3"}));
  lanes->Close(0, LaneStep(~0ull));
  EXPECT_EQ(recorder.Take(), (Lines{"0 took 3"}));
  EXPECT_EQ(lanes->Untaken().size(), 0u);
}

// Trainers with queues of messages in both directions, at random speeds. Some close early, also while they wait, or
// stop waiting. One trainer takes nothing once the source is exhausted.
class DynamicSimulation : public testing::TestWithParam<unsigned> {};

TEST_P(DynamicSimulation, EveryElementIsTakenOnce) {
  std::mt19937 random(GetParam());
  const auto below = [&](uint64_t n) { return static_cast<uint64_t>(random() % n); };
  const size_t n = 1 + below(5);
  const uint64_t prefetch = 1 + below(4), elements = below(60);
  const Outcome outcome = GetParam() % 2 == 1 ? Outcome(kInternal, "broken") : Outcome();
  ChannelConfig config;
  config.schedule = plan::Schedule::kDynamic;
  struct Trainer {
    explicit Trainer(int prefetch) : window(prefetch, 0, true) {}
    World world;
    Window window;
    std::unique_ptr<TrainerEpoch> epoch;
    bool waiting = false, over = false;
    bool sleeps = false;  // stops taking when the source is exhausted
    bool leaves_waiting = false;
    uint64_t leaves_after = ~0ull;
    std::deque<std::pair<wire::Message, BundlePtr>> in;
    std::deque<wire::Message> out;
  };
  std::deque<Trainer> trainers;
  for (size_t t = 0; t < n; ++t) {
    Trainer& trainer = trainers.emplace_back(static_cast<int>(prefetch));
    trainer.world = MakeWorld(static_cast<int>(t) + 1, static_cast<int>(n), 1, true);
    if (below(4) == 0) trainer.leaves_after = below(elements + 1);
    trainer.leaves_waiting = below(4) == 0;
  }
  trainers[0].sleeps = n > 1 && below(2) == 0;
  Trainer& stays = trainers[n > 1 ? 1 : 0];  // one trainer stays to the end
  stays.leaves_after = ~0ull;
  stays.leaves_waiting = false;
  std::vector<int> seen(elements, 0), told(elements, 0);
  LaneCalls output;
  const auto at = [&](int t) -> Trainer& { return trainers[static_cast<size_t>(t)]; };
  output.data = [&](int t, LaneStep step, DealtStep, const Step& dealt) {
    at(t).in.emplace_back(DataAt(step.n), dealt.ShareOf(t).bundle);
  };
  output.end = [&](int t, LaneStep step, const Outcome& end) {
    at(t).in.emplace_back(EndAt(step.n, end.code, end.message), nullptr);
  };
  output.recall = [&](int t) { at(t).in.emplace_back(wire::Recall(), nullptr); };
  output.taken = [&](int, uint64_t element) { ++told[element]; };
  const std::shared_ptr<Lanes> lanes = DynamicLanesOf(static_cast<int>(n), &output);
  const auto all_over = [&] {
    return std::all_of(trainers.begin(), trainers.end(), [](const Trainer& t) { return t.over; });
  };
  for (int round = 0; !all_over() && !HasFailure(); ++round) {
    ASSERT_LT(round, 200000) << "no progress";
    if (!lanes->finished() && lanes->HasCredit(1) && below(2) == 0) {
      if (lanes->dealt() < elements)
        lanes->Deal(MakeStep(lanes->dealt(), 0));
      else
        lanes->Finish(outcome);
    }
    const int t = static_cast<int>(below(n));
    Trainer& me = at(t);
    if (!me.epoch) {
      me.epoch =
          std::make_unique<TrainerEpoch>(config, me.world, 1, SinkState(), &me.window,
                                         [&me](int, wire::Message message) { me.out.push_back(std::move(message)); });
      continue;
    }
    const uint64_t turn = below(3);
    if (turn == 0 && !me.out.empty()) {
      const wire::Message message = std::move(me.out.front());
      me.out.pop_front();
      if (const auto* open = std::get_if<wire::Open>(&message)) lanes->Open(t, open->limit);
      if (const auto* taken = std::get_if<wire::Taken>(&message)) lanes->Taken(t, taken->taken, taken->limit);
      if (const auto* back = std::get_if<wire::Recalled>(&message)) lanes->Recalled(t, back->from, back->limit);
      if (const auto* close = std::get_if<wire::Close>(&message)) lanes->Close(t, close->taken);
    } else if (turn == 1 && !me.in.empty()) {
      const auto [message, bundle] = std::move(me.in.front());
      me.in.pop_front();
      if (me.over) continue;
      if (const auto* data = std::get_if<wire::Data>(&message)) me.epoch->On(0, *data, bundle);
      if (const auto* end = std::get_if<wire::End>(&message)) me.epoch->On(0, *end);
      if (std::holds_alternative<wire::Recall>(message)) me.epoch->OnRecall(0);
      ASSERT_LE(me.epoch->Queued(), prefetch);
    } else if (turn == 2 && !me.over) {
      const bool gives_up = me.waiting && below(16) == 0, sleeps = me.sleeps && lanes->finished();
      if (me.epoch->taken().n >= me.leaves_after || (me.waiting && me.leaves_waiting && below(8) == 0)) {
        me.over = true;
        me.epoch->Close();
      } else if (gives_up || (sleeps && me.waiting)) {
        me.waiting = false;
        me.epoch->GiveUp();
      } else if (me.epoch->HasNext() && (!sleeps || me.epoch->Queued() == 0)) {
        if (std::exchange(me.waiting, false)) me.epoch->SetWaiting(false);
        Arrival arrival;
        Outcome end;
        if (me.epoch->Take(&arrival, &end) == TrainerEpoch::Next::kShare) {
          ++seen[TokenOf(arrival.bundle).element];
        } else {
          EXPECT_EQ(end.message, outcome.message);
          me.over = true;
          me.epoch->Close();
        }
      } else if (!me.waiting && !sleeps) {
        me.waiting = true;
        me.epoch->SetWaiting(true);
      }
    }
  }
  EXPECT_EQ(seen, std::vector<int>(elements, 1));
  EXPECT_EQ(told, seen);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DynamicSimulation, testing::Range(0u, 400u));

}  // namespace
}  // namespace hvdata
