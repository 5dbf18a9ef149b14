// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "channel_lanes_recorder.h"

namespace hvdata {
namespace {

class DynamicLanesTest : public testing::Test {
 protected:
  void Make(int trainers) { lanes_ = DynamicLanesOf(trainers, &recorder_); }
  void Deal(uint64_t elements = 1) {
    for (uint64_t i = 0; i < elements; ++i) lanes_->Deal(MakeStep(lanes_->dealt(), 0));
  }
  Texts Out() { return recorder_.Take(); }

  Recorder recorder_;
  std::shared_ptr<Lanes> lanes_;
};

TEST_F(DynamicLanesTest, TheLaneThatHoldsFewestComesFirst) {
  Make(3);
  for (int t = 0; t < 3; ++t) lanes_->Open(t, LaneStep(2));
  Deal(4);
  EXPECT_EQ(Out(), (Texts{"0<0:0", "1<0:1", "2<0:2", "0<1:3"}));
  lanes_->Taken(2, LaneStep(1), LaneStep(3));
  EXPECT_EQ(Out(), (Texts{"2 took 2"}));
  Deal(2);
  EXPECT_EQ(Out(), (Texts{"2<1:4", "1<1:5"})) << "among equals, the one served longest ago";
  ASSERT_TRUE(lanes_->HasCredit(1));
  Deal();
  EXPECT_EQ(Out(), (Texts{"2<2:6"}));
  EXPECT_FALSE(lanes_->HasCredit(1));
}

TEST_F(DynamicLanesTest, OneOpenLaneIsEnough) {
  Make(2);
  EXPECT_FALSE(lanes_->HasCredit(1));
  lanes_->Open(1, LaneStep(1));
  EXPECT_TRUE(lanes_->HasCredit(1));
  Deal();
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  Deal();
  EXPECT_EQ(Out(), (Texts{"1<0:0", "1 took 0", "1<1:1"}));
}

TEST_F(DynamicLanesTest, WhatAClosedLaneHeldGoesToTheOthersOldestFirst) {
  Make(2);
  lanes_->Open(0, LaneStep(3));
  Deal(3);
  lanes_->Open(1, LaneStep(3));
  Out();
  lanes_->Close(0, LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"0 took 0", "1<0:1", "1<1:2"}));
  EXPECT_TRUE(lanes_->HasCredit(1));
}

TEST_F(DynamicLanesTest, WhatAClosedLaneHeldWaitsForALaneThatOpensLater) {
  Make(2);
  lanes_->Open(0, LaneStep(2));
  Deal(2);
  lanes_->Finish({});
  lanes_->Close(0, LaneStep(0));
  EXPECT_EQ(lanes_->Untaken().size(), 2u);
  Out();
  lanes_->Open(1, LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"1<0:0", "1<1:1"}));
  lanes_->Taken(1, LaneStep(2), LaneStep(4));
  EXPECT_EQ(Out(), (Texts{"1 took 0", "1 took 1", "1<end@2"}));
}

TEST_F(DynamicLanesTest, NothingIsPulledWhileSomethingWaits) {
  Make(2);
  lanes_->Open(0, LaneStep(2));
  Deal(2);
  lanes_->Open(1, LaneStep(1));
  lanes_->Close(0, LaneStep(0));
  EXPECT_FALSE(lanes_->HasCredit(1)) << "element 1 has no lane yet";
}

TEST_F(DynamicLanesTest, AnIdleLaneHasTheOthersRecalledOnce) {
  Make(3);
  for (int t = 0; t < 3; ++t) lanes_->Open(t, LaneStep(2));
  Deal(4);
  Out();
  lanes_->Finish({});
  EXPECT_EQ(Out(), Texts()) << "nobody is idle yet";
  lanes_->Taken(2, LaneStep(1), LaneStep(3));
  EXPECT_EQ(Out(), (Texts{"2 took 2", "0<recall", "1<recall"}));
  lanes_->Taken(0, LaneStep(1), LaneStep(3));  // sent before it saw the recall
  EXPECT_EQ(Out(), (Texts{"0 took 0"}));
  lanes_->Recalled(0, LaneStep(1), LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"2<1:3"}));
  lanes_->Recalled(1, LaneStep(0), LaneStep(1));  // hands back, and asks for one
  EXPECT_EQ(Out(), (Texts{"1<0:1"})) << "it holds nothing, lane 2 has one";
  lanes_->Taken(2, LaneStep(2), LaneStep(4));
  EXPECT_EQ(Out(), (Texts{"2 took 3"})) << "what is held now has been asked for: no second recall";
  lanes_->Taken(1, LaneStep(1), LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"1 took 1", "0<end@1", "1<end@1", "2<end@2"}));
}

TEST_F(DynamicLanesTest, TheTailEndsThoughOneLaneHoldsElementsAndNeverTakes) {
  Make(2);
  lanes_->Open(0, LaneStep(4));
  Deal(3);
  lanes_->Open(1, LaneStep(1));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<1:1", "0<2:2", "0<recall"}));
  EXPECT_EQ(lanes_->WaitsFor(1), std::vector<int>{0});
  lanes_->Recalled(0, LaneStep(0), LaneStep(0));  // takes nothing: no demand
  EXPECT_EQ(Out(), (Texts{"1<0:0"}));
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  lanes_->Taken(1, LaneStep(2), LaneStep(3));
  lanes_->Taken(1, LaneStep(3), LaneStep(4));
  EXPECT_EQ(Out(), (Texts{"1 took 0", "1<1:1", "1 took 1", "1<2:2", "1 took 2", "0<end@0", "1<end@3"}));
}

TEST_F(DynamicLanesTest, ALaneThatTookAllBeforeTheRecallCame) {
  Make(2);
  lanes_->Open(0, LaneStep(1));
  lanes_->Open(1, LaneStep(1));
  Deal();
  lanes_->Finish({});
  Out();
  lanes_->Taken(0, LaneStep(1), LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"0 took 0", "0<end@1", "1<end@0"}));
  lanes_->Recalled(0, LaneStep(1), LaneStep(1));
  EXPECT_EQ(Out(), Texts());
}

TEST_F(DynamicLanesTest, CloseAnswersARecallToo) {
  Make(2);
  lanes_->Open(0, LaneStep(2));
  lanes_->Open(1, LaneStep(2));
  Deal();
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<recall"}));
  lanes_->Close(0, LaneStep(0));
  EXPECT_EQ(Out(), (Texts{"1<0:0"}));
  lanes_->Recalled(0, LaneStep(0), LaneStep(0));
  EXPECT_EQ(Out(), Texts());
}

TEST_F(DynamicLanesTest, ALateOpenerIsEnded) {
  Make(2);
  lanes_->Open(0, LaneStep(1));
  lanes_->Finish({});
  lanes_->Open(1, LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"0<end@0", "1<end@0"}));
}

TEST_F(DynamicLanesTest, AnErrorComesAfterEverythingBeforeIt) {
  Make(3);
  lanes_->Open(0, LaneStep(2));
  lanes_->Open(1, LaneStep(2));
  Deal(3);
  lanes_->Finish({kInternal, "broken"});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "1<0:1", "0<1:2"}));
  lanes_->Taken(1, LaneStep(1), LaneStep(3));
  EXPECT_EQ(Out(), (Texts{"1 took 1", "0<recall"})) << "one that is idle takes over from one that is slow";
  lanes_->Close(0, LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"0 took 0", "1<1:2"}));
  lanes_->Taken(1, LaneStep(2), LaneStep(4));
  EXPECT_EQ(Out(), (Texts{"1 took 2", "1<end@2!13 broken"}));
  lanes_->Open(2, LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"2<end@0!13 broken"}));
}

TEST_F(DynamicLanesTest, WhatAClosedLaneGaveBackBeforeTheErrorIsDelivered) {
  Make(2);
  lanes_->Open(0, LaneStep(2));
  lanes_->Open(1, LaneStep(1));
  Deal(3);
  Out();
  lanes_->Close(0, LaneStep(0));  // while the pull is under way that will fail, and the other lane is full
  lanes_->Finish({kInternal, "broken"});
  EXPECT_EQ(Out(), Texts());
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"1 took 1", "1<1:0"}));
  lanes_->Taken(1, LaneStep(2), LaneStep(3));
  lanes_->Taken(1, LaneStep(3), LaneStep(4));
  EXPECT_EQ(Out(), (Texts{"1 took 0", "1<2:2", "1 took 2", "1<end@3!13 broken"}));
}

// Whoever waited for it may have been cancelled in that moment, or gone.
TEST_F(DynamicLanesTest, AShareThatIsKeptIsNotTakenYet) {
  Make(2);
  lanes_->Open(0, LaneStep(2));
  Deal(2);
  lanes_->Open(1, LaneStep(1));
  lanes_->Finish({});
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<1:1", "0<recall"}));
  lanes_->Recalled(0, LaneStep(1), LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"1<0:1"}));
  lanes_->Taken(1, LaneStep(1), LaneStep(2));
  EXPECT_EQ(Out(), (Texts{"1 took 1"})) << "not the end: there is one to come, from lane 0 perhaps";
  lanes_->Close(0, LaneStep(0));
  EXPECT_EQ(Out(), (Texts{"1<1:0"}));
  lanes_->Taken(1, LaneStep(2), LaneStep(3));
  EXPECT_EQ(Out(), (Texts{"1 took 0", "1<end@2"}));
}

TEST_F(DynamicLanesTest, AShareThatIsKeptCanBeGivenBack) {
  Make(2);
  lanes_->Open(0, LaneStep(1));
  Deal();
  lanes_->Open(1, LaneStep(1));
  lanes_->Finish({});
  lanes_->Recalled(0, LaneStep(1), LaneStep(1));
  EXPECT_EQ(Out(), (Texts{"0<0:0", "0<recall"}));
  lanes_->Recalled(0, LaneStep(0), LaneStep(0));
  EXPECT_EQ(Out(), (Texts{"1<0:0"}));
}

// What a trainer says is not believed beyond what was sent to it.
TEST_F(DynamicLanesTest, NobodyHasTakenWhatWasNotSent) {
  Recorder recorder;
  const std::shared_ptr<Lanes> lanes = DynamicLanesOf(2, &recorder);
  lanes->Open(0, LaneStep(2));
  for (uint64_t k = 0; k < 2; ++k) lanes->Deal(MakeStep(k, 0));
  recorder.Take();
  lanes->Taken(0, LaneStep(100), LaneStep(3));
  EXPECT_EQ(recorder.Take(), (Texts{"0 took 0", "0 took 1"}));
  lanes->Deal(MakeStep(2, 0));
  EXPECT_EQ(recorder.Take(), (Texts{"0<2:2"})) << "nothing is passed over";
  lanes->Recalled(0, LaneStep(~0ull), LaneStep(~0ull));  // nobody asked
  EXPECT_EQ(recorder.Take(), Texts());
  lanes->Taken(0, LaneStep(~0ull), LaneStep(4));
  EXPECT_EQ(recorder.Take(), (Texts{"0 took 2"}));
  lanes->Deal(MakeStep(3, 0));
  EXPECT_EQ(recorder.Take(), (Texts{"0<3:3"}));
  lanes->Close(0, LaneStep(~0ull));
  EXPECT_EQ(recorder.Take(), (Texts{"0 took 3"}));
  EXPECT_EQ(lanes->Untaken().size(), 0u);
}

// Trainers behind queues of messages in both directions, as TrainerEpoch and the network behave, at random speeds; some close
// early, be it while they wait, one never takes anything once the source is exhausted.
class DynamicSimulation : public testing::TestWithParam<unsigned> {};

TEST_P(DynamicSimulation, EveryElementIsTakenOnce) {
  std::mt19937 random(GetParam());
  const auto below = [&](uint64_t n) { return static_cast<uint64_t>(random() % n); };
  const size_t n = 1 + below(5);
  const uint64_t prefetch = 1 + below(4), elements = below(60);
  struct Message {
    enum { kData, kEnd, kRecall, kTaken, kRecalled, kClose } kind;
    uint64_t a = 0, b = 0;
  };
  struct Trainer {
    bool open = false, closed = false, ended = false, on_demand = false, waiting = false;
    bool sleeps = false;  // stops taking when the source is exhausted
    bool leaves_waiting = false;
    uint64_t taken = 0, leaves_after = ~0ull;
    std::deque<uint64_t> queue;
    std::deque<Message> in, out;
  };
  std::vector<Trainer> trainers(n);
  std::vector<int> seen(elements, 0);
  LaneCalls output;
  const auto at = [&](int t) -> Trainer& { return trainers[static_cast<size_t>(t)]; };
  output.data = [&](int t, LaneStep, DealtStep, const Step& step_dealt) {
    at(t).in.push_back({Message::kData, TokenOf(step_dealt.ShareOf(t).bundle).element, 0});
  };
  output.end = [&](int t, LaneStep step, const Outcome&) { at(t).in.push_back({Message::kEnd, step.n, 0}); };
  output.recall = [&](int t) { at(t).in.push_back({Message::kRecall, 0, 0}); };
  std::vector<int> told(elements, 0);
  output.taken = [&](int, uint64_t element) { ++told[element]; };
  const std::shared_ptr<Lanes> lanes = DynamicLanesOf(static_cast<int>(n), &output);
  for (Trainer& trainer : trainers) {
    if (below(4) == 0) trainer.leaves_after = below(elements + 1);
    trainer.leaves_waiting = below(4) == 0;
  }
  trainers[0].sleeps = n > 1 && below(2) == 0;
  Trainer& stays = trainers[n > 1 ? 1 : 0];  // somebody is there to the end
  stays.leaves_after = ~0ull;
  stays.leaves_waiting = false;
  const auto limit = [&](const Trainer& t) {
    return t.on_demand ? t.taken + (t.waiting && t.queue.empty() ? 1 : 0) : t.taken + prefetch;
  };
  const auto all_ended = [&] {
    return std::all_of(trainers.begin(), trainers.end(), [](const Trainer& t) { return t.ended || t.closed; });
  };
  for (int round = 0; !all_ended(); ++round) {
    ASSERT_LT(round, 200000) << "no progress";
    if (!lanes->finished() && lanes->HasCredit(1) && below(2)) {
      if (lanes->dealt() < elements) {
        lanes->Deal(MakeStep(lanes->dealt(), 0));
      } else {
        lanes->Finish(GetParam() % 2 ? Outcome(kInternal, "broken") : Outcome());
      }
    }
    const size_t pick = below(n);
    const int t = static_cast<int>(pick);
    Trainer& me = trainers[pick];
    if (!me.open) {
      me.open = true;
      lanes->Open(t, LaneStep(limit(me)));
      continue;
    }
    switch (below(3)) {
      case 0:  // to the source
        if (me.out.empty()) break;
        switch (me.out.front().kind) {
          case Message::kTaken:
            lanes->Taken(t, LaneStep(me.out.front().a), LaneStep(me.out.front().b));
            break;
          case Message::kRecalled:
            lanes->Recalled(t, LaneStep(me.out.front().a), LaneStep(me.out.front().b));
            break;
          default:
            lanes->Close(t, LaneStep(me.out.front().a));
        }
        me.out.pop_front();
        break;
      case 1: {  // from the source
        if (me.in.empty()) break;
        const Message message = me.in.front();
        me.in.pop_front();
        if (me.closed) break;
        if (message.kind == Message::kData) {
          me.queue.push_back(message.a);
          ASSERT_LE(me.queue.size(), prefetch);
          if (me.on_demand && !me.waiting) {
            me.queue.clear();
            me.out.push_back({Message::kRecalled, me.taken, me.taken});
          }
        } else if (message.kind == Message::kEnd) {
          ASSERT_FALSE(me.ended);
          me.ended = true;
          ASSERT_EQ(message.a, me.taken + me.queue.size());
        } else {
          ASSERT_FALSE(me.on_demand) << "recalled twice";
          me.on_demand = true;
          const size_t keep = me.waiting && !me.queue.empty() ? 1 : 0;
          me.queue.resize(keep);
          me.out.push_back({Message::kRecalled, me.taken + keep, me.taken + (me.waiting ? 1 : 0)});
        }
        break;
      }
      default:  // the user
        if (me.closed || (me.ended && me.queue.empty())) break;
        if (me.sleeps && lanes->finished()) {
          me.waiting = false;
          if (!me.on_demand || me.queue.empty()) break;
          me.queue.clear();
          me.out.push_back({Message::kRecalled, me.taken, me.taken});
        } else if (me.taken >= me.leaves_after || (me.waiting && me.leaves_waiting && below(8) == 0)) {
          me.closed = true;
          me.queue.clear();
          me.out.push_back({Message::kClose, me.taken, 0});
        } else if (!me.queue.empty()) {
          ++seen[me.queue.front()];
          me.queue.pop_front();
          ++me.taken;
          me.waiting = false;
          me.out.push_back({Message::kTaken, me.taken, limit(me)});
        } else if (!me.waiting) {
          me.waiting = true;
          if (me.on_demand) me.out.push_back({Message::kTaken, me.taken, limit(me)});
        }
    }
  }
  EXPECT_EQ(seen, std::vector<int>(elements, 1));
  EXPECT_EQ(told, seen);
}

INSTANTIATE_TEST_SUITE_P(Seeds, DynamicSimulation, testing::Range(0u, 400u));

}  // namespace
}  // namespace hvdata
