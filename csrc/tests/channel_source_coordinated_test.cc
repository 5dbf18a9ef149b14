// SPDX-License-Identifier: Apache-2.0
// A reader with trainers of its own, which keeps in step with other readers.
#include "channel_source_fixture.h"
#include "texts.h"

namespace hvdata {
namespace {

using Notice = wire::Go::Notice;

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
    ASSERT_EQ(world_.group_trainer_count(), 2);
  }
  void Begin(uint64_t epoch) override {
    SourceTest::Begin(epoch);
    EXPECT_EQ(Sent(), Lines{"r0 READY e" + std::to_string(epoch) + " 0,7,0"});
  }
  void Go(uint64_t epoch, uint64_t step, Notice notice = Notice::kAllHave, Outcome outcome = {}) {
    source_->Handle(world_.readers[0], MakeHeader(0, epoch, wire::Go{notice, Turn(step), std::move(outcome)}));
  }
};

// Reader 0 answers when it hears that the epoch has begun here.
TEST_F(GroupedTest, AnEpochMayBeOverWhenItBegins) {
  Go(1, 0, Notice::kEndsThere);  // of no epoch that has begun
  OpenAndBegin(1);
  Deal();
  Go(1, 1);
  Go(1, 0);  // overtaken
  EXPECT_EQ(Sent(), (Lines{"r0 READY e1 1,0,0", "2 DATA e1 0,1,0", "3 DATA e1 0,1,0"}));
  CloseAll(1, 1);
  Sent();
  OpenAndBegin(2);
  Go(2, 0, Notice::kEndsThere);
  EXPECT_EQ(Sent(), (Lines{"2 END e2 0,0,0", "3 END e2 0,0,0"}));
  EXPECT_EQ(source_->Await(), Task::kStop);
  Go(1, 3);  // of an epoch that is over
  EXPECT_EQ(Sent(), Lines());
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 2, 0);
  const std::string log = LinesOf([&] { source_->End(); });
  EXPECT_HAS(log, "leaves out 0 step(s) that were ready, and any later steps");
}

// Sent at the epoch's end, when the number of this reader's steps is known.
TEST_F(GroupedTest, AnotherReadersEndLeavesOutWhatIsReadyHere) {
  OpenAndBegin(1);
  Deal();
  Deal();
  Go(1, 1);
  Sent();
  Go(1, 1, Notice::kEndsThere);
  EXPECT_EQ(Sent(), (Lines{"2 END e1 1,0,0", "3 END e1 1,0,0"}));
  EXPECT_EQ(source_->Await(), Task::kStop);
  for (int t = 0; t < 2; ++t) source_->OnClose(t, 1, 1);
  EXPECT_EQ(
      LinesOf([&] { source_->End(); }),
      "horovod_data: [reader 1 on host1, channel train, epoch 1, step 1] remainder=\"drop\": the data of another host "
      "has ended, so this epoch has ended; this reader leaves out 1 step(s) that were ready, and any later steps of "
      "its pipeline\n");
}

TEST_F(GroupedTest, WithoutFillersTheEndSaysWhy) {
  Make(plan::Remainder::kPartial);
  OpenAndBegin(1);
  source_->Epoch()->CannotFill("a scalar");
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), (Lines{"r0 READY e1 0,2,3 [reader 1 on host1, channel train, epoch 1, step 0] a scalar"}));
  Go(1, 0, Notice::kEndsThere);
  EXPECT_EQ(Sent().size(), 2u);
}

TEST_F(GroupedTest, WithAnotherHostAFailureMayBeAnEnd) {
  const auto said = [this](plan::Remainder remainder, const std::string& what) {
    ChannelConfig config;
    config.remainder = remainder;
    config.on_error_continue = true;
    SourceTest::Make(config, MakeWorld(1, 4, 2, true, true));
    OpenAndBegin(1);
    const std::string log = LinesOf([&] { source_->Epoch()->Finish({kInternal, "broken"}, true); });
    EXPECT_HAS(log, "step 0] broken. on_reader_error=\"continue\": " + what);
    return Sent();
  };
  EXPECT_EQ(said(plan::Remainder::kDrop,
                 "the epoch is over on all hosts, as at the end of a host's data (remainder=\"drop\"); at least 1"),
            (Lines{"r0 READY e1 0,1,13 [reader 1 on host1, channel train, epoch 1, step 0] broken"}));
  EXPECT_EQ(said(plan::Remainder::kPad, "the epoch goes on, but the ranks of this host get no rows; at least 1"),
            (Lines{"r0 READY e1 0,2,13 [reader 1 on host1, channel train, epoch 1, step 0] broken"}));
}

// A state that can't be used: the dealer finishes before it has pulled an element, and must not begin to pull.
TEST_F(GroupedTest, NothingIsPulledAfterTheInputIsOver) {
  OpenAndBegin(1);
  source_->Epoch()->Finish({kInternal, "no such checkpoint"});
  EXPECT_EQ(source_->Await(), Task::kStop) << "though the others have not agreed to the end yet";
  Sent();
  source_->Deal(MakeStep(0, 2));
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(GroupedTest, ARestoreThatComesTooLateEndsTheEpochForAllReaders) {
  OpenAndBegin(1);
  Deal();
  Sent();
  source_->OnRestore(1, 1, {"words", 4, 1, 2, 0}, 1);
  const Lines sent = Sent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].substr(0, 19), "r0 READY e1 1,3,9 [");
  EXPECT_EQ(sent[1].substr(0, 18), "3 STATE e1 0,1,9 [");
  EXPECT_EQ(source_->Await(), Task::kStop);
}

// When the last trainer leaves, it cancels the pull. However that pull ends, it does not end the epoch of other hosts.
TEST_F(GroupedTest, WhatComesOfACancelledPullIsNoWordToTheOthers) {
  for (const Outcome& outcome : {Outcome(), Outcome(kCancelled, "cancelled")}) {
    const uint64_t epoch = outcome.ok() ? 1 : 2;
    OpenAndBegin(epoch);
    Deal();
    ASSERT_EQ(source_->Await(), Task::kPull);
    for (int t = 0; t < 2; ++t) source_->OnClose(t, epoch, 0);
    Sent();
    source_->Epoch()->Finish(outcome);
    EXPECT_EQ(Sent(), Lines());
    EXPECT_EQ(source_->Linger(), Task::kStop);
    source_->End();
    EXPECT_EQ(Sent(), (Lines{"r0 READY e" + std::to_string(epoch) + " 1,4,0"}));
  }
}

// These ranks saved after they had seen the end. Ranks of another host had not seen it, and must end there, too.
TEST_F(GroupedTest, AHostThatIsDoneTellsWhereTheEpochEnded) {
  for (int t = 0; t < 2; ++t) {
    source_->OnRestore(t, 1, {"", kAllTaken.n, 1, 3, 0}, t + 1);
    source_->OnOpen(t, 1, 2);
    source_->OnClose(t, 1, 0);
  }
  ASSERT_EQ(NextEpoch(), 1);
  source_->Begin(1, nullptr);
  source_->Start({kAllTaken.n, kAllTaken.n}, 3);
  Sent();
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), (Lines{"r0 READY e1 3,1,0"}));
}

TEST_F(GroupedTest, WhoLeavesForGoodSaysSo) {
  OpenAndBegin(1);
  source_->Depart(0);
  EXPECT_EQ(Sent(), Lines());
  source_->Depart(1);
  EXPECT_EQ(Sent(), (Lines{"r0 READY e1 0,5,0"}));
  source_->Depart(1);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  EXPECT_EQ(Sent(), Lines()) << "nothing follows, so that the coordinator may forget the channel";
}

TEST_F(GroupedTest, AHostThatIsNotHeldByItselfAsksWhoIsBehind) {
  OpenAndBegin(1);
  Deal();
  Deal();
  Sent();
  source_->OnWhy(0, 1, 0);
  const std::string has = "2 BECAUSE e1 0,0,0 reader 1 on host1 has step 0 and waits for reader 0 on host0, which ";
  EXPECT_EQ(Sent(), (Lines{has + "keeps the readers of all hosts in step: it has not answered", "r0 READY e1 2,6,0"}))
      << "its own ranks wait for steps that are here";
  Go(1, 0, Notice::kBehind, {kOk, "reader 0 on host0, which has not"});
  EXPECT_EQ(Sent(), (Lines{has + "has not"}));
  source_->OnWhy(0, 1, 0);
  EXPECT_EQ(Sent(), (Lines{has + "has not", "r0 READY e1 2,6,0"})) << "it asks again";
  Go(1, 2);
  Sent();
  source_->OnTaken(0, 1, 2, 4);
  source_->OnWhy(0, 1, 2);
  EXPECT_EQ(Sent(), (Lines{"2 BECAUSE e1 0,0,0 reader 1 on host1 has dealt 2 steps and waits until rank 3 on node3 has "
                           "taken more of them"}));
  source_->OnTaken(1, 1, 2, 4);
  ASSERT_EQ(source_->Await(), Task::kPull);
  source_->OnWhy(0, 1, 2);
  EXPECT_EQ(Sent()[0].substr(0, 41), "2 BECAUSE e1 0,0,0 the pipeline of reader");
  source_->Epoch()->Finish({});
  Sent();
  source_->OnWhy(1, 1, 2);
  ASSERT_EQ(Sent().back(), "r0 READY e1 2,6,0") << "its end waits for the others too";
}

}  // namespace
}  // namespace hvdata
