// SPDX-License-Identifier: Apache-2.0
// A reader among several: readers that take turns, and readers with trainers of their own.
#include "engine_source_fixture.h"

#include "engine/in_step.h"

namespace hvdata {
namespace {

// Reader 1 of two that share 2 trainers.
class TurnsTest : public SourceTest {
 protected:
  void SetUp() override { Make(plan::Schedule::kStatic, 2); }
  void Make(plan::Schedule schedule, int readers) { SourceTest::Make(schedule, readers); }
  void OpenAll(uint64_t epoch, uint64_t limit) {
    for (int t = 0; t < 2; ++t) source_->OnOpen(t, epoch, limit);
  }
  // Elements `first` and so on, too few for a step.
  void Leave(uint64_t first, uint64_t count, bool fillers, std::string no_filler = "") {
    std::vector<Source::Left> left;
    for (uint64_t k = first; k < first + count; ++k) {
      left.push_back({std::make_shared<Token>(Token{k, -1}), MakeToken(k, -1), fillers ? MakeToken(k + 100, -1) : nullptr});
    }
    source_->Leave(std::move(left), first, std::move(no_filler));
  }
};

TEST_F(TurnsTest, TheNextStepIsPulledBeforeThereIsRoomForIt) {
  OpenAll(1, 0);
  Begin(1);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  source_->Deal(MakeStep(0, 2, 2));
  EXPECT_EQ(Sent(), Texts());
  EXPECT_EQ(source_->Steps(), 0u);
  source_->OnSave(0, 1, 0, 4);
  ASSERT_EQ(source_->Await(), Source::Wish::kSave) << "one step in hand is enough";
  const auto untaken = source_->UntakenElements();
  ASSERT_EQ(untaken.size(), 2u) << "what is in hand has been taken by nobody";
  EXPECT_EQ(untaken[1].first, 1u);
  source_->TakeSaveRequests();
  source_->OnTaken(0, 1, 0, 1);
  source_->OnTaken(1, 1, 0, 1);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement) << "it has its place, and the next one is pulled";
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,2,0", "1 DATA e1 0,2,0"}));
  source_->Deal(MakeStep(2, 2, 2));
  EXPECT_EQ(Sent(), Texts());
  source_->OnTaken(0, 1, 1, 2);
  source_->OnTaken(1, 1, 1, 2);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 1,4,1", "1 DATA e1 1,4,1"}));
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 2,0,0", "1 END e1 2,0,0"}));
}

TEST_F(TurnsTest, WhatIsInHandWhenEverybodyLeavesIsForgotten) {
  OpenAll(1, 0);
  Begin(1);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  source_->Deal(MakeStep(0, 2, 2));
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0);
  EXPECT_EQ(source_->Await(), Source::Wish::kStop);
  source_->End();
  OpenAll(2, 1);
  Begin(2);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(TurnsTest, WhatIsLeftGoesToWhoClaimsIt) {
  OpenAll(1, 1);
  Begin(1);
  EXPECT_TRUE(source_->shares_tail());
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  source_->Deal(MakeStep(0, 2, 2));
  Sent();
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  Leave(2, 1, true);
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 1,0,1", "1 END e1 1,0,1"})) << "one is left";
  source_->OnTaken(0, 1, 1, 1);
  source_->OnTaken(1, 1, 1, 1);
  const auto untaken = source_->UntakenElements();
  ASSERT_EQ(untaken.size(), 1u);
  EXPECT_EQ(untaken[0].first, 2u);
  EXPECT_EQ(TokenOf(untaken[0].second).element, 2u);
  source_->OnClaim(1, 1, 0, 0, false);
  EXPECT_EQ(Sent(), (Texts{"1 DATA e1 0,2,0"}));
  source_->OnClaim(0, 1, 0, 0, true);
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,2,0"}));
  source_->OnClaim(0, 1, 0, 1, false);   // there is no such
  source_->OnClaim(0, 1, 0, -1, false);
  source_->OnClaim(0, 2, 0, 0, false);   // of another epoch
  EXPECT_EQ(Sent(), Texts());
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 1);
  EXPECT_EQ(source_->Linger(), Source::Wish::kStop);
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
  testing::internal::CaptureStderr();
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 0, 1);
  EXPECT_EQ(source_->Linger(), Source::Wish::kStop);
  source_->End();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "horovod_data: [reader 1 on host1, channel train, epoch 1, step 0 of "
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
  ChannelConfig config;
  config.on_error_continue = true;
  config.elements = 10;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  OpenAll(1, 9);
  Begin(1);
  for (uint64_t k = 0; k < 4; k += 2) {
    ASSERT_EQ(source_->Await(), Source::Wish::kElement);
    source_->Deal(MakeStep(k, 2, 2));
  }
  Sent();
  testing::internal::CaptureStderr();
  source_->Finish({kInternal, "broken"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "horovod_data: [reader 1 on host1, channel train, epoch 1, step 2 of its own] broken. "
            "on_reader_error=\"continue\": the epoch goes on without this reader; 6 of its 10 elements are lost\n");
  EXPECT_EQ(Sent(), (Texts{"0 END e1 2,0,0", "1 END e1 2,0,0"}));
}

// What was delivered before a checkpoint is not lost.
TEST_F(TurnsTest, WhatARestoredReaderLosesIsCountedFromItsFront) {
  ChannelConfig config;
  config.on_error_continue = true;
  config.elements = 10;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  for (int t = 0; t < 2; ++t) source_->OnRestore(t, 1, {"words", 4, 1, 2, 0}, t + 1);
  OpenAll(1, 9);
  ASSERT_EQ(NextEpoch(), 1);
  source_->Begin(1, nullptr);
  source_->Start({4, 4}, 2);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  source_->Deal(MakeStep(4, 2, 2));
  testing::internal::CaptureStderr();
  source_->Finish({kInternal, "broken"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("step 3 of its own] broken. "), std::string::npos) << log;
  EXPECT_NE(log.find("4 of its 10 elements are lost"), std::string::npos) << log;
}

TEST_F(TurnsTest, DynamicCountsElementsOneByOne) {
  ChannelConfig config;
  config.on_error_continue = true;
  config.schedule = plan::Schedule::kDynamic;
  config.elements = 10;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  OpenAll(1, 9);
  Begin(1);
  for (uint64_t k = 0; k < 4; ++k) Deal(0);
  testing::internal::CaptureStderr();
  source_->Finish({kInternal, "broken"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("6 of its 10 elements are lost"), std::string::npos) << log;
}

TEST_F(TurnsTest, OfAnUnknownNumberAtLeastOneIsLost) {
  ChannelConfig config;
  config.on_error_continue = true;
  SourceTest::Make(config, MakeWorld(1, 2, 2, true));
  OpenAll(1, 9);
  Begin(1);
  testing::internal::CaptureStderr();
  source_->Finish({kInternal, "broken"});
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("at least 1 of its elements is lost"), std::string::npos) << log;
}

// Where a lane goes on from a checkpoint, its turns and the last steps that were had are those of the whole epoch.
TEST_F(TurnsTest, TurnsAreCountedOverRuns) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 1}, 1);
  OpenAll(1, 2);
  ASSERT_EQ(NextEpoch(), 1);
  const auto handed = source_->Begin(1, nullptr);
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed.at(0).turn, 2u);
  EXPECT_EQ(handed.at(0).tail_taken, 1u);
  source_->Start({4, 4}, 2, 1);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  Sent();
  source_->Deal(MakeStep(4, 2, 2));
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,6,2", "1 DATA e1 0,6,2"}));
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
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
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  Sent();
  source_->Deal(MakeStep(4, 2, 2));
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,6,2", "1 DATA e1 0,6,2"}));
}

// A trainer in our own process answers inside of our sending it a share: with room for more, and at once.
TEST_F(TurnsTest, AShareMayBeAnsweredWhileItIsSent) {
  ChannelConfig config;
  config.batch = plan::Batch::kPerRank;
  const World world = MakeWorld(1, 2, 2, false);
  Texts sent;
  std::unique_ptr<Source> source;
  source = std::make_unique<Source>(config, &world, [&](int member, Header h, const Share*) {
    sent.push_back(std::to_string(member) + " " + wire::KindName(h.kind) + " " + std::to_string(h.step));
    if (h.kind == Kind::kData && member == 1) {
      source->OnTaken(1, h.epoch, h.step + 1, h.step + 2);
      source->OnWhy(1, h.epoch, h.step + 1);
    }
  });
  for (int t = 0; t < 2; ++t) source->OnOpen(t, 1, 1);
  source->Begin(1, nullptr);
  source->Start({});
  for (uint64_t k = 0; k < 4; k += 2) {
    ASSERT_EQ(source->Await(), Source::Wish::kElement);
    source->Deal(MakeStep(k, 2, 2));  // the second one is in hand until there is room for it on rank 0
  }
  EXPECT_EQ(sent, (Texts{"0 DATA 0", "1 DATA 0", "1 BECAUSE 1"}));
  sent.clear();
  source->OnTaken(0, 1, 1, 2);
  ASSERT_EQ(source->Await(), Source::Wish::kElement);
  EXPECT_EQ(sent, (Texts{"0 DATA 1", "1 DATA 1", "1 BECAUSE 2"}));
}

// Reader 1 of two, each with two trainers of its own: this one ranks 2 and 3.
class GroupedTest : public SourceTest {
 protected:
  void SetUp() override { Make(plan::Remainder::kDrop); }
  void Make(plan::Remainder remainder, int prefetch = 2) {
    ChannelConfig config;
    config.remainder = remainder;
    config.prefetch = prefetch;
    SourceTest::Make(config, MakeWorld(1, 4, 2, true, true));
    ASSERT_TRUE(world_.grouped);
    ASSERT_EQ(world_.audience_count(), 2);
  }
  void OpenAll(uint64_t epoch, uint64_t limit = 2) {
    for (int t = 0; t < 2; ++t) source_->OnOpen(t, epoch, limit);
  }
  void Go(uint64_t epoch, uint64_t step, int64_t a = 0, Outcome outcome = {}) {
    Header h;
    h.kind = Kind::kGo;
    h.epoch = epoch;
    h.step = step;
    h.a = a;
    h.b = outcome.code;
    h.text = outcome.message;
    source_->OnGo(h);
  }
  std::string LogOf(const std::function<void()>& what) {
    testing::internal::CaptureStderr();
    what();
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(GroupedTest, AStepIsReportedAndReleasedByTheOthersWord) {
  OpenAll(1);
  Begin(1);
  Deal();
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 1,0,0"}));
  Go(1, 1);
  EXPECT_EQ(Sent(), (Texts{"2 DATA e1 0,1,0", "3 DATA e1 0,1,0"}));
  EXPECT_EQ(source_->Await(), Source::Wish::kElement);
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 1,1,0"}));
  EXPECT_EQ(source_->Await(), Source::Wish::kStop);
  EXPECT_EQ(LogOf([&] { Go(1, 1, 1); }), "") << "nothing is left out";
  EXPECT_EQ(Sent(), (Texts{"2 END e1 1,0,0", "3 END e1 1,0,0"}));
  Go(1, 5);  // overtaken
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 1);
  EXPECT_EQ(source_->Linger(), Source::Wish::kStop);
  source_->End();
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 1,4,0"}));
}

TEST_F(GroupedTest, AWordThatCameBeforeTheEpochBeginsHereIsKept) {
  Go(1, 1);
  Go(2, 0, 1);  // the next one is over before it has begun
  Go(1, 0);     // overtaken
  OpenAll(1);
  Begin(1);
  Deal();
  EXPECT_EQ(Sent(), (Texts{"2 DATA e1 0,1,0", "3 DATA e1 0,1,0", "r0 READY e1 1,0,0"}));
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 1);
  EXPECT_EQ(source_->Linger(), Source::Wish::kStop);
  source_->End();
  Sent();
  OpenAll(2);
  Begin(2);
  EXPECT_EQ(Sent(), (Texts{"2 END e2 0,0,0", "3 END e2 0,0,0"}));
  EXPECT_EQ(source_->Await(), Source::Wish::kStop);
  Go(1, 3);  // of an epoch that is over
  EXPECT_EQ(Sent(), Texts());
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 2, 0);
  const std::string log = LogOf([&] { source_->End(); });
  EXPECT_NE(log.find("whatever the pipeline of this reader would still have yielded is left out"), std::string::npos) << log;
}

// Said at the epoch's end, when it is known what this reader had.
TEST_F(GroupedTest, AnotherReadersEndLeavesOutWhatIsReadyHere) {
  OpenAll(1);
  Begin(1);
  Deal();
  Deal();
  Go(1, 1);
  Sent();
  Go(1, 1, 1);
  EXPECT_EQ(Sent(), (Texts{"2 END e1 1,0,0", "3 END e1 1,0,0"}));
  EXPECT_EQ(source_->Await(), Source::Wish::kStop);
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 1);
  EXPECT_EQ(LogOf([&] { source_->End(); }),
            "horovod_data: [reader 1 on host1, channel train, epoch 1, step 1] remainder=\"drop\": the data of another host has "
            "ended, and with it the epoch; 1 step(s) that this reader had ready are left out, and all that its pipeline would "
            "still have yielded\n");
}

TEST_F(GroupedTest, AnErrorHereAndOneElsewhere) {
  OpenAll(1);
  Begin(1);
  source_->Finish({kInternal, "broken"});
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 0,3,13 [reader 1 on host1, channel train, epoch 1, step 0] broken"}));
  EXPECT_EQ(LogOf([&] { Go(1, 0, 1, {kInternal, "[reader 0 on host0] broken too"}); }), "");
  EXPECT_EQ(Sent(), (Texts{"2 END e1 0,13,0 [reader 0 on host0] broken too", "3 END e1 0,13,0 [reader 0 on host0] broken too"}));
}

TEST_F(GroupedTest, FillersAreGivenOnceTheDataIsOver) {
  Make(plan::Remainder::kPad);
  ASSERT_TRUE(source_->fills());
  OpenAll(1);
  Begin(1);
  source_->Fill(MakeStep(9, 2));
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 0,2,0"}));
  Go(1, 1);
  EXPECT_EQ(Sent().size(), 2u);
  Go(1, 1, 1);
  EXPECT_EQ(Sent(), (Texts{"2 END e1 1,0,0", "3 END e1 1,0,0"}));
}

// A state that can't be used: the dealer finishes before it has pulled anything, and must not begin to.
TEST_F(GroupedTest, NothingIsPulledAfterTheInputIsOver) {
  OpenAll(1);
  Begin(1);
  source_->Finish({kInternal, "no such checkpoint"});
  EXPECT_EQ(source_->Await(), Source::Wish::kStop) << "though the others have not agreed to the end yet";
  Sent();
  source_->Deal(MakeStep(0, 2));
  EXPECT_EQ(Sent(), Texts());
  EXPECT_EQ(source_->Steps(), 0u);
}

TEST_F(GroupedTest, ARestoreThatComesTooLateEndsTheEpochForAllReaders) {
  OpenAll(1);
  Begin(1);
  Deal();
  Sent();
  source_->OnRestore(1, 1, {"words", 4, 1, 2, 0}, 1);
  const Texts sent = Sent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].substr(0, 18), "3 STATE e1 0,1,9 [");
  EXPECT_EQ(sent[1].substr(0, 19), "r0 READY e1 1,3,9 [");
  EXPECT_EQ(source_->Await(), Source::Wish::kStop);
}

TEST_F(GroupedTest, WhoLeavesForGoodSaysSo) {
  OpenAll(1);
  Begin(1);
  source_->OnGone(0);
  EXPECT_EQ(Sent(), Texts());
  source_->OnGone(1);
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 0,5,0"}));
  source_->OnGone(1);
  EXPECT_EQ(source_->Await(), Source::Wish::kStop);
  source_->End();
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 0,4,0"}));
}

// Hosts whose ranks saved at different steps go on from different steps: all are told in steps of the epoch.
TEST_F(GroupedTest, StepsAreCountedOverRuns) {
  for (int t = 0; t < 2; ++t) source_->OnRestore(t, 1, {"words", 6, 1, 3, 0}, t + 1);
  OpenAll(1);
  ASSERT_EQ(NextEpoch(), 1);
  source_->Begin(1, nullptr);
  source_->Start({6, 6}, 3);
  Sent();
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  source_->Deal(MakeStep(6, 2, 2));
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 4,0,0"}));
  Go(1, 2);
  EXPECT_EQ(Sent(), Texts()) << "another host is further back";
  Go(1, 4);
  EXPECT_EQ(Sent(), (Texts{"2 DATA e1 0,8,3", "3 DATA e1 0,8,3"}));
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 4,1,0"}));
  Go(1, 4, 1);
  EXPECT_EQ(Sent(), (Texts{"2 END e1 1,0,0", "3 END e1 1,0,0"}));
}

TEST_F(GroupedTest, AHostThatIsNotHeldByItselfAsksWhoIsBehind) {
  OpenAll(1);
  Begin(1);
  Deal();
  Deal();
  Sent();
  source_->OnWhy(0, 1, 0);
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 2,6,0"})) << "its own ranks wait for steps that are here";
  Go(1, 0, 2, {kOk, "reader 0 on host0"});
  EXPECT_EQ(Sent(), (Texts{"2 BECAUSE e1 0,0,0 reader 1 on host1 has step 0 and waits for reader 0 on host0, which has not"}));
  Go(1, 2);
  Sent();
  source_->OnTaken(0, 1, 2, 4);
  source_->OnWhy(0, 1, 2);
  EXPECT_EQ(Sent(), (Texts{"2 BECAUSE e1 2,0,0 reader 1 on host1 has dealt 2 steps and waits until rank 3 on node3 has taken "
                           "more of them"}));
  source_->OnTaken(1, 1, 2, 4);
  ASSERT_EQ(source_->Await(), Source::Wish::kElement);
  source_->OnWhy(0, 1, 2);
  EXPECT_EQ(Sent()[0].substr(0, 41), "2 BECAUSE e1 2,0,0 the pipeline of reader");
  source_->Finish({});
  Sent();
  source_->OnWhy(1, 1, 2);
  EXPECT_EQ(Sent(), (Texts{"r0 READY e1 2,6,0"})) << "its end waits for the others too";
}

}  // namespace
}  // namespace hvdata
