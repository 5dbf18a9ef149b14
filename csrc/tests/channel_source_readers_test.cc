// SPDX-License-Identifier: Apache-2.0
// A reader that takes turns with others.
#include <deque>

#include "captured_lines.h"
#include "channel_source_fixture.h"

namespace hvdata {
namespace {

// Reader 1 of two that share 2 trainers.
class TurnsTest : public SourceTest {
 protected:
  void SetUp() override { Make(plan::Schedule::kStatic, 2); }
  void Make(plan::Schedule schedule, int readers) { SourceTest::Make(schedule, readers); }
  // One of two readers, which the other would go on without, and whose epochs have 10 elements.
  void MakeOneThatMayFail(plan::Schedule schedule = plan::Schedule::kStatic) {
    ChannelConfig config;
    config.on_error_continue = true;
    config.schedule = schedule;
    config.elements = 10;
    SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  }
  void OpenAll(uint64_t epoch, uint64_t limit) {
    for (int t = 0; t < 2; ++t) source_->OnOpen(t, epoch, limit);
  }
  // Elements `first` and so on, too few for a step.
  void Leave(uint64_t first, uint64_t count, bool fillers, std::string no_filler = "") {
    std::vector<Leftover> leftovers(count);
    for (uint64_t i = 0; i < count; ++i) {
      leftovers[i].share = MakeStep(first + i, 0);
      leftovers[i].filler.first = first + i;
      if (fillers) leftovers[i].filler.shares = {MakeToken(first + i + 100, -1)};
    }
    source_->Epoch()->Leave(std::move(leftovers), std::move(no_filler));
  }
};

TEST_F(TurnsTest, TheNextStepIsPulledBeforeThereIsRoomForIt) {
  OpenAll(1, 0);
  Begin(1);
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->Deal(MakeStep(0, 2, 2));
  EXPECT_EQ(Sent(), Texts());
  source_->OnWhy(0, 1, 0);
  const Texts because = Sent();
  ASSERT_EQ(because.size(), 1u);
  EXPECT_NE(because[0].find("has dealt 0 steps"), std::string::npos) << because[0];
  source_->OnSave(0, 1, 4);
  ASSERT_EQ(source_->Await(), Task::kSave) << "one step in hand is enough";
  const auto untaken = source_->Epoch()->UntakenElements();
  ASSERT_EQ(untaken.size(), 2u) << "what is in hand has been taken by nobody";
  EXPECT_EQ(untaken[1].first, 1u);
  source_->TakeSaveRequests();
  source_->OnTaken(0, 1, 0, 1);
  source_->OnTaken(1, 1, 0, 1);
  ASSERT_EQ(source_->Await(), Task::kPull) << "it has its place, and the next one is pulled";
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,2,0", "1 DATA e1 0,2,0"}));
  source_->Deal(MakeStep(2, 2, 2));
  EXPECT_EQ(Sent(), Texts());
  source_->OnTaken(0, 1, 1, 2);
  source_->OnTaken(1, 1, 1, 2);
  ASSERT_EQ(source_->Await(), Task::kPull);
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 1,4,1", "1 DATA e1 1,4,1"}));
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 2,0,0", "1 END e1 2,0,0"}));
}

TEST_F(TurnsTest, WhatIsInHandWhenEverybodyLeavesIsForgotten) {
  OpenAll(1, 0);
  Begin(1);
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->Deal(MakeStep(0, 2, 2));
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  OpenAll(2, 1);
  Begin(2);
  ASSERT_EQ(source_->Await(), Task::kPull);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(TurnsTest, WhatIsLeftGoesToWhoClaimsIt) {
  OpenAll(1, 1);
  Begin(1);
  EXPECT_TRUE(source_->shares_tail());
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->Deal(MakeStep(0, 2, 2));
  Sent();
  ASSERT_EQ(source_->Await(), Task::kPull);
  Leave(2, 1, true);
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 1,0,1", "1 END e1 1,0,1"})) << "one is left";
  source_->OnTaken(0, 1, 1, 1);
  source_->OnTaken(1, 1, 1, 1);
  const auto untaken = source_->Epoch()->UntakenElements();
  ASSERT_EQ(untaken.size(), 1u);
  EXPECT_EQ(untaken[0].first, 2u);
  EXPECT_EQ(TokenOf(untaken[0].second).element, 2u);
  source_->OnClaim(1, 1, 0, 0, false);
  EXPECT_EQ(Sent(), (Texts{"1 DATA e1 1,3,1"}));
  source_->OnClaim(0, 1, 0, 0, true);
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 1,2,1"}));
  source_->OnClaim(0, 1, 0, 1, false);  // there is no such
  source_->OnClaim(0, 1, 0, -1, false);
  source_->OnClaim(0, 2, 0, 0, false);  // of another epoch
  EXPECT_EQ(Sent(), Texts());
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 1);
  EXPECT_EQ(source_->Linger(), Task::kStop);
  source_->End();
  source_->OnClaim(0, 1, 0, 0, false);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(TurnsTest, WithoutAModelThereIsNoFillerAndTheEndSaysWhy) {
  OpenAll(1, 1);
  Begin(1);
  Leave(0, 1, false, "'x' is a scalar");
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 0,0,1 'x' is a scalar", "1 END e1 0,0,1 'x' is a scalar"}));
  source_->OnClaim(0, 1, 0, 0, true);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(TurnsTest, WhatNobodyGotOfTheTailIsSaidOnce) {
  OpenAll(1, 1);
  Begin(1);
  Leave(0, 1, false);
  source_->Finish({});
  CaptureLines();
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0, 1);
  EXPECT_EQ(source_->Linger(), Task::kStop);
  source_->End();
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [reader 1 on host1, channel train, epoch 1, step 0 of "
            "its own] remainder=\"drop\" left out 1 element(s) of this epoch\n");
}

TEST_F(TurnsTest, OnlyPerRankStaticBatchesHaveATail) {
  EXPECT_TRUE(source_->shares_tail());
  Make(plan::Schedule::kDynamic, 2);
  EXPECT_FALSE(source_->shares_tail());
  Make(plan::Schedule::kStatic, 1);
  EXPECT_FALSE(source_->shares_tail());
}

TEST_F(TurnsTest, AReaderThatFailsMayBeLeftOut) {
  MakeOneThatMayFail();
  OpenAll(1, 9);
  Begin(1);
  for (uint64_t k = 0; k < 4; k += 2) {
    ASSERT_EQ(source_->Await(), Task::kPull);
    source_->Deal(MakeStep(k, 2, 2));
  }
  Sent();
  CaptureLines();
  source_->Finish({kInternal, "broken"}, true);
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [reader 1 on host1, channel train, epoch 1, step 2 of its own] broken. "
            "on_reader_error=\"continue\": the epoch goes on without this reader; 6 of its 10 elements are lost\n");
  const std::string end = " END e1 2,13," + std::to_string(kLost) +
                          " [reader 1 on host1, channel train, epoch 1, step 2 of its "
                          "own] broken";
  EXPECT_EQ(Sent(), (Texts{"0" + end, "1" + end})) << "which counts only if nobody is left";
}

TEST_F(TurnsTest, WhatIsNoErrorOfThePipelineEndsTheEpochForAll) {
  ChannelConfig config;
  config.on_error_continue = true;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  OpenAll(1, 9);
  Begin(1);
  Sent();
  CaptureLines();
  source_->Finish({kInternal, "no such checkpoint"});
  EXPECT_EQ(CapturedLines(), "");
  const std::string end =
      " END e1 0,13,0 [reader 1 on host1, channel train, epoch 1, step 0 of its own] no such checkpoint";
  EXPECT_EQ(Sent(), (Texts{"0" + end, "1" + end}));
}

TEST_F(TurnsTest, OneReaderAloneHasNobodyToGoOnWith) {
  ChannelConfig config;
  config.on_error_continue = true;
  SourceTest::Make(config, MakeWorld(0, 2, 1, true));
  OpenAll(1, 9);
  Begin(1);
  Sent();
  source_->Finish({kInternal, "broken"}, true);
  EXPECT_EQ(Sent()[0].substr(0, 16), "0 END e1 0,13,0 ");
}

// What was delivered before a checkpoint is not lost.
TEST_F(TurnsTest, WhatARestoredReaderLosesIsCountedFromItsFront) {
  MakeOneThatMayFail();
  for (int t = 0; t < 2; ++t) source_->OnRestore(t, 1, {"words", 4, 1, 2, 0}, t + 1);
  OpenAll(1, 9);
  ASSERT_EQ(NextEpoch(), 1);
  source_->Begin(1, nullptr);
  source_->Start({4, 4}, 2);
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->Deal(MakeStep(4, 2, 2));
  CaptureLines();
  source_->Finish({kInternal, "broken"}, true);
  const std::string log = CapturedLines();
  EXPECT_NE(log.find("step 3 of its own] broken. "), std::string::npos) << log;
  EXPECT_NE(log.find("4 of its 10 elements are lost"), std::string::npos) << log;
}

TEST_F(TurnsTest, ElementsThatMadeNoStepAreNotLost) {
  MakeOneThatMayFail();
  OpenAll(1, 9);
  Begin(1);
  for (int i = 0; i < 4; ++i) source_->Epoch()->Dropped(i, 1);
  Deal();
  CaptureLines();
  source_->Finish({kInternal, "broken"}, true);
  const std::string log = CapturedLines();
  EXPECT_NE(log.find("4 of its 10 elements are lost"), std::string::npos) << log;
}

TEST_F(TurnsTest, DynamicCountsElementsOneByOne) {
  MakeOneThatMayFail(plan::Schedule::kDynamic);
  OpenAll(1, 9);
  Begin(1);
  for (uint64_t k = 0; k < 4; ++k) Deal(0);
  CaptureLines();
  source_->Finish({kInternal, "broken"}, true);
  const std::string log = CapturedLines();
  EXPECT_NE(log.find("6 of its 10 elements are lost"), std::string::npos) << log;
}

TEST_F(TurnsTest, NothingIsLostWhereNobodyWantsMore) {
  ChannelConfig config;
  config.on_error_continue = true;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  OpenAll(1, 9);
  Begin(1);
  ASSERT_EQ(source_->Await(), Task::kPull);
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0);
  CaptureLines();
  source_->Finish({kCancelled, "cancelled"}, true);  // the pull that the last one's leaving cancelled
  EXPECT_EQ(CapturedLines(), "");
}

TEST_F(TurnsTest, OfAnUnknownNumberAtLeastOneIsLost) {
  ChannelConfig config;
  config.on_error_continue = true;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  OpenAll(1, 9);
  Begin(1);
  CaptureLines();
  source_->Finish({kInternal, "broken"}, true);
  const std::string log = CapturedLines();
  EXPECT_NE(log.find("at least 1 of its elements is lost"), std::string::npos) << log;
}

// Where a lane goes on from a checkpoint, its turns and the last steps that were had are those of the whole epoch.
TEST_F(TurnsTest, TurnsAreCountedOverRuns) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 1}, 1);
  OpenAll(1, 2);
  ASSERT_EQ(NextEpoch(), 1);
  const auto handed = source_->Begin(1, nullptr);
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed.at(0).turn.n, 2u);
  EXPECT_EQ(handed.at(0).tail_taken.n, 1u);
  source_->Start({4, 4}, 2, 1);
  ASSERT_EQ(source_->Await(), Task::kPull);
  Sent();
  source_->Deal(MakeStep(4, 2, 2));
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,6,2", "1 DATA e1 0,6,2"}));
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 1,0,0", "1 END e1 1,0,4294967296"}))
      << "rank 0 has its own count of the last steps; rank 1, which restored nothing, stands where it stands";
}

// A rank that restored nothing may think that another reader comes first, and has no room for this one: the reader's first
// step goes to it nevertheless, and tells it where the lane begins.
TEST_F(TurnsTest, AFirstStepGoesToWhoDoesNotKnowWhereTheLaneBegins) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 0}, 1);
  source_->OnOpen(0, 1, 1);
  source_->OnOpen(1, 1, 0);
  ASSERT_EQ(NextEpoch(), 1);
  source_->Begin(1, nullptr);
  source_->Start({4, 4}, 2);
  ASSERT_EQ(source_->Await(), Task::kPull);
  Sent();
  source_->Deal(MakeStep(4, 2, 2));
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,6,2", "1 DATA e1 0,6,2"}));
}

// A trainer in our own process answers once the call that sent it a share has returned: with room for more, and at once.
TEST_F(TurnsTest, AShareIsAnsweredAfterItWasSent) {
  ChannelConfig config;
  config.batch = plan::Batch::kPerRank;
  const World world = MakeWorld(1, 2, 2, false);
  Texts sent;
  std::deque<Header> queue;
  PlainSource source(config, &world, 60, [&](int member, Header h, const Share*) {
    sent.push_back(std::to_string(member) + " " + h.name() + " " + std::to_string(PlainOf(h.message).step));
    if (KindOf(h) == Kind::kData && member == 1) queue.push_back(std::move(h));
  });
  const auto answer = [&] {
    for (; !queue.empty(); queue.pop_front()) {
      const uint64_t epoch = queue.front().epoch, step = PlainOf(queue.front().message).step;
      source.OnTaken(1, epoch, step + 1, step + 2);
      source.OnWhy(1, epoch, step + 1);
    }
  };
  for (int t = 0; t < 2; ++t) source.OnOpen(t, 1, 1);
  source.Begin(1, nullptr);
  source.Start({});
  for (uint64_t k = 0; k < 4; k += 2) {
    ASSERT_EQ(source.Await(), Task::kPull);
    source.Deal(MakeStep(k, 2, 2));  // the second one is in hand until there is room for it on rank 0
    answer();
  }
  EXPECT_EQ(sent, (Texts{"0 DATA 0", "1 DATA 0", "1 BECAUSE 0"}));
  sent.clear();
  source.OnTaken(0, 1, 1, 2);
  ASSERT_EQ(source.Await(), Task::kPull);
  answer();
  EXPECT_EQ(sent, (Texts{"0 DATA 1", "1 DATA 1", "1 BECAUSE 0"}));
}

// Rank 0 alone has restored a state, in which the other reader has dealt a step and this one none: rank 1 may have given it no room.
TEST_F(TurnsTest, AFirstStepGoesOutInTheFirstRoundToo) {
  source_->OnRestore(0, 1, {"words", 0, 1, 0, 0}, 1);
  source_->OnOpen(0, 1, 1);
  source_->OnOpen(1, 1, 0);
  ASSERT_EQ(NextEpoch(), 1);
  source_->Begin(1, nullptr);
  source_->Start({0, 0}, 0);
  ASSERT_EQ(source_->Await(), Task::kPull);
  Sent();
  source_->Deal(MakeStep(0, 2, 2));
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,2,0", "1 DATA e1 0,2,0"}));
}

}  // namespace
}  // namespace hvdata
