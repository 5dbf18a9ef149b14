// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "captured_lines.h"
#include "channel_sink_fixture.h"

namespace hvdata {
namespace {

TEST_F(SinkTest, AnEpoch) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  EXPECT_TRUE(Beside([&] { return Next(&iterator); }, [&] { Data(1, 0); }).ok());
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3"}));
  Data(1, 1);
  Say(0, Make(Kind::kEnd, 1, 2));
  EXPECT_TRUE(Next(&iterator).ok());
  EXPECT_FALSE(end_);
  EXPECT_TRUE(Next(&iterator).ok());
  EXPECT_TRUE(end_);
  EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 2,4", "r0 CLOSE e1 2,0"}));
  EXPECT_TRUE(Next(&iterator).ok());
  EXPECT_TRUE(end_);
  sink_->Drop(&iterator);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(SinkTest, AnIteratorThatIsNeverAskedSendsNothing) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  sink_->Drop(&iterator);
  EXPECT_EQ(Sent(), Texts());
}

TEST_F(SinkTest, DataOfAClosedEpochIsDropped) {
  Make(plan::Schedule::kStatic);
  SinkIterator first, second;
  Data(1, 0);  // nothing is open
  EXPECT_TRUE(Beside([&] { return Next(&first); }, [&] { Data(1, 0); }).ok());
  sink_->Drop(&first);
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3", "r0 CLOSE e1 1,0"}));
  const Outcome outcome = Beside([&] { return Next(&second); },
                                 [&] {
                                   Data(1, 1);
                                   Say(0, Make(Kind::kEnd, 1, 2));
                                   Say(0, Make(Kind::kRecall, 1, 0));
                                   Say(0, Make(Kind::kEnd, 2, 0));
                                 });
  EXPECT_TRUE(outcome.ok() && end_);
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
}

// Its error comes by two ways, of which either may be the first: it must not depend on that who begins the next epoch.
TEST_F(SinkTest, AnEpochThatWasWrongIsNoErrorOfTheNext) {
  Make(plan::Schedule::kStatic);
  SinkIterator first, second;
  const Header wrong = MakeHeader(7, 1, wire::Verified{kDataLoss, "1 row altered"});
  const Outcome ended = Beside(
      [&] { return Next(&first); },
      [&] {
        Say(0, MakeHeader(7, 1, wire::End{LaneStep(0), kDataLoss, "1 row altered", false, 0, TailStep(), "", 0}));
      });
  EXPECT_EQ(ended.code, kDataLoss);
  Say(0, wrong);
  sink_->Drop(&first);
  EXPECT_TRUE(Beside([&] { return Next(&second); }, [&] { Data(2, 0); }).ok());
}

TEST_F(SinkTest, WhoLeavesAnEpochThatIsWrongHearsOfItInTheNext) {
  Make(plan::Schedule::kStatic);
  SinkIterator first, second;
  EXPECT_TRUE(Beside([&] { return Next(&first); }, [&] { Data(1, 0); }).ok());
  sink_->Drop(&first);
  Say(0, MakeHeader(7, 1, wire::Verified{kDataLoss, "1 row altered"}));
  EXPECT_EQ(Next(&second).code, kDataLoss);
}

TEST_F(SinkTest, WhoWaitsInTheNextHearsOfItThere) {
  Make(plan::Schedule::kStatic);
  SinkIterator first, second;
  EXPECT_TRUE(Beside([&] { return Next(&first); }, [&] { Data(1, 0); }).ok());
  sink_->Drop(&first);
  Sent();
  const Outcome told = Beside([&] { return Next(&second); },
                              [&] { Say(0, MakeHeader(7, 1, wire::Verified{kDataLoss, "1 row altered"})); });
  EXPECT_EQ(told.code, kDataLoss);
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
}

// The others are in it, and a reader deals to all that have not left it.
TEST_F(SinkTest, WhoHearsThatAnEpochIsWrongBeforeBeginningItLeavesItAtOnceAndTakesPartInTheNext) {
  Make(plan::Schedule::kStatic, 2);
  SinkIterator first, second;
  for (const int reader : {0, 1}) Say(reader, MakeHeader(7, 1, wire::Verified{kDataLoss, "1 row altered"}));
  EXPECT_EQ(Next(&first).code, kDataLoss);
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,1", "r1 OPEN e1 0,1", "r0 CLOSE e1 0,0", "r1 CLOSE e1 0,0"}));
  EXPECT_TRUE(Next(&first).ok() && end_) << "an iterator that has told its error is over";
  EXPECT_TRUE(Beside([&] { return Next(&second); }, [&] { Data(2, 0); }).ok());
}

TEST_F(SinkTest, SeveralReadersTakeTurnsAndShareTheWindow) {
  Make(plan::Schedule::kStatic, 3);
  SinkIterator iterator;
  const Outcome outcome = Beside([&] { return Next(&iterator); },
                                 [&] {
                                   Data(1, 0, 1);  // not its turn
                                   Data(1, 0, 0);
                                 });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,1", "r1 OPEN e1 0,1", "r2 OPEN e1 0,0",  //
                           "r0 TAKEN e1 1,1", "r2 TAKEN e1 0,1"}));
  EXPECT_TRUE(Next(&iterator).ok());
  EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 1,2", "r1 TAKEN e1 1,1"}));
  Say(2, Make(Kind::kEnd, 1, 0));
  Data(1, 1, 0);
  EXPECT_TRUE(Next(&iterator).ok());
  EXPECT_EQ(Sent(), (Texts{"r1 TAKEN e1 1,2", "r2 TAKEN e1 0,0", "r0 TAKEN e1 2,3"}));
}

TEST_F(SinkTest, ARecallHandsBackWhatIsNotTaken) {
  Make(plan::Schedule::kDynamic);
  SinkIterator iterator;
  EXPECT_TRUE(Beside([&] { return Next(&iterator); }, [&] { Data(1, 0); }).ok());
  Data(1, 1);
  Data(1, 2);
  Sent();
  Say(0, Make(Kind::kRecall, 1, 0));
  EXPECT_EQ(Sent(), (Texts{"r0 RECALLED e1 1,1"}));
  const Outcome outcome = Beside([&] { return Next(&iterator); }, [&] { Data(1, 1); });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 1,2", "r0 TAKEN e1 2,2"})) << "asks for one, takes it, asks for no more";
}

TEST_F(SinkTest, ARecallWhileNextWaitsIsADemand) {
  Make(plan::Schedule::kDynamic);
  SinkIterator iterator;
  const Outcome outcome = Beside([&] { return Next(&iterator); },
                                 [&] {
                                   Say(0, Make(Kind::kRecall, 1, 0));
                                   EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 RECALLED e1 0,1"}));
                                   Data(1, 0);
                                 });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Sent(), (Texts{"r0 TAKEN e1 1,1"}));
}

// A TAKEN from before the recall that overtakes the RECALLED would grant the reader room for elements nobody asks for.
TEST_F(SinkTest, MessagesLeaveInTheOrderInWhichTheyCameAbout) {
  Make(plan::Schedule::kDynamic);
  SinkIterator iterator;
  std::promise<void> in_taken, go_on;
  on_send_ = [&](const Header& h) {
    if (KindOf(h) != Kind::kTaken) return;
    in_taken.set_value();
    go_on.get_future().wait();
  };
  const Outcome outcome = Beside([&] { return Next(&iterator); },
                                 [&] {
                                   Data(1, 0);
                                   in_taken.get_future().wait();
                                   std::thread recall([&] { Say(0, Make(Kind::kRecall, 1, 0)); });
                                   std::this_thread::sleep_for(std::chrono::milliseconds(100));
                                   go_on.set_value();
                                   recall.join();
                                 });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3", "r0 RECALLED e1 1,1"}));
}

TEST_F(SinkTest, TheOldIteratorsEndDoesNotWithdrawTheNewOnesDemand) {
  Make(plan::Schedule::kDynamic);
  SinkIterator older, newer;
  std::future<Outcome> old_wait, new_wait;
  Arrival arrivals[2];
  bool ends[2];
  old_wait = std::async(std::launch::async, [&] { return sink_->Next(&older, &arrivals[0], &ends[0]); });
  while (messages_ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  new_wait = std::async(std::launch::async, [&] { return sink_->Next(&newer, &arrivals[1], &ends[1]); });
  EXPECT_EQ(old_wait.get().code, kFailedPrecondition);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until the newer one waits: nothing tells when
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 CLOSE e1 0,0", "r0 OPEN e2 0,2"}));
  Say(0, Make(Kind::kRecall, 2, 0));
  EXPECT_EQ(Sent(), (Texts{"r0 RECALLED e2 0,1"}));
  Data(2, 0);
  EXPECT_TRUE(new_wait.get().ok());
}

TEST_F(SinkTest, ASupersededIteratorSaysSo) {
  Make(plan::Schedule::kStatic);
  SinkIterator older, newer;
  EXPECT_TRUE(Beside([&] { return Next(&older); }, [&] { Data(1, 0); }).ok());
  EXPECT_TRUE(Beside([&] { return Next(&newer); }, [&] { Data(2, 0); }).ok());
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3", "r0 CLOSE e1 1,0",  //
                           "r0 OPEN e2 0,2", "r0 TAKEN e2 1,3"}));
  SinkState state;
  EXPECT_EQ(sink_->Save(&older, &state).code, kFailedPrecondition);
  const Outcome outcome = Next(&older);
  EXPECT_EQ(outcome.code, kFailedPrecondition);
  EXPECT_NE(outcome.message.find("this iterator was superseded: a newer one of the same channel runs on this rank "
                                 "(epoch 2)"),
            std::string::npos);
  sink_->Drop(&older);
  EXPECT_EQ(Sent(), Texts()) << "the newer one goes on";
}

TEST_F(SinkTest, CancelEndsAWait) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  const Outcome outcome = Beside([&] { return Next(&iterator); }, [&] { sink_->Cancel(&iterator); });
  EXPECT_EQ(outcome.code, kCancelled);
  EXPECT_EQ(outcome.message,
            "[rank 1 on node1, channel train, epoch 1, step 0] the iterator was cancelled while it "
            "waited for step 0 from reader 0 on host0");
}

TEST_F(SinkTest, CtrlCEndsAWaitAndStillReachesTheHandlerBefore) {
  static std::atomic<int> handled{0};
  struct sigaction handler = {}, before;
  handler.sa_handler = [](int) { ++handled; };
  sigaction(SIGINT, &handler, &before);
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  const Outcome outcome =
      Beside([&] { return Next(&iterator); },
             [] {
               struct sigaction now = {};
               do {  // until it watches
                 std::this_thread::sleep_for(std::chrono::milliseconds(5));
                 sigaction(SIGINT, nullptr, &now);
               } while ((now.sa_flags & SA_SIGINFO) == 0);
               std::this_thread::sleep_for(std::chrono::milliseconds(100));  // and has counted what was before
               raise(SIGINT);
             });
  sigaction(SIGINT, &before, nullptr);
  EXPECT_EQ(outcome.code, kCancelled);
  EXPECT_NE(outcome.message.find("interrupted (SIGINT) while it waited for step 0"), std::string::npos);
  EXPECT_EQ(handled, 1);
}

TEST_F(SinkTest, AFailureEndsEveryWaitButNotWhatHasArrived) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator, late;
  EXPECT_TRUE(Beside([&] { return Next(&iterator); }, [&] { Data(1, 0); }).ok());
  Data(1, 1);
  sink_->Fail({kUnavailable, "rank 0 on node0 has died"});
  sink_->Fail({kInternal, "something that follows from it"});
  EXPECT_TRUE(Next(&iterator).ok());
  const Outcome outcome = Next(&iterator);
  EXPECT_EQ(outcome.code, kUnavailable);
  EXPECT_EQ(outcome.message, "[rank 1 on node1, channel train, epoch 1, step 2] rank 0 on node0 has died");
  EXPECT_EQ(Next(&late).code, kUnavailable);
}

TEST_F(SinkTest, TheTimeLimitNamesTheReason) {
  Make(plan::Schedule::kStatic, 1, 0.1, 3);
  on_sent_ = [&](const Header& h) {  // a reader in our own process answers at once
    if (KindOf(h) == Kind::kWhy) Say(0, Make(Kind::kBecause, h.epoch, 0, 0, "it sleeps"));
  };
  SinkIterator iterator;
  CaptureLines();
  const Outcome outcome = Next(&iterator);
  EXPECT_EQ(AnySeconds(CapturedLines()),
            "horovod_data: [rank 1 on node1, channel train, epoch 1, step 0] has waited N s for step 0 from reader 0 "
            "on host0: it sleeps\n");
  EXPECT_EQ(outcome.code, kDeadlineExceeded);
  EXPECT_EQ(AnySeconds(outcome.message),
            "[rank 1 on node1, channel train, epoch 1, step 0] waited N s for step 0 from reader 0 on host0: it "
            "sleeps. Mend that, "
            "or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)");
}

TEST_F(SinkTest, AReaderThatSaysNothing) {
  Make(plan::Schedule::kStatic, 1, 10, 0.1);
  SinkIterator iterator;
  const Outcome outcome = Next(&iterator);
  EXPECT_NE(
      outcome.message.find("reader 0 on host0 has not answered either: it writes a large state for a checkpoint, its "
                           "process is stopped, or its link is silent"),
      std::string::npos)
      << outcome.message;
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e1 0,2", "r0 WHY e1 0,0"}));
}

TEST_F(SinkTest, SavingWaitsForTheReadersWords) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  SinkState state;
  EXPECT_TRUE(sink_->Save(&iterator, &state).ok());
  EXPECT_EQ(state.kind, SinkState::kUnused);
  EXPECT_TRUE(Beside([&] { return Next(&iterator); }, [&] { Data(1, 0); }).ok());
  Sent();
  Outcome outcome = Beside([&] { return sink_->Save(&iterator, &state); },
                           [&] {
                             EXPECT_EQ(Sent(), (Texts{"r0 SAVE e1 0,1"}));
                             Say(0, Make(Kind::kState, 1, 0, 1, "words"));
                           });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(state.kind, SinkState::kRunning);
  EXPECT_EQ(state.trainers, 2u);
  ASSERT_EQ(state.lanes.size(), 1u);
  EXPECT_EQ(state.lanes[0].position.n, 1u);
  EXPECT_EQ(state.lanes[0].turn.n, 1u);
  EXPECT_EQ(state.lanes[0].reader_state, "words");
  outcome = Beside([&] { return sink_->Save(&iterator, &state); },
                   [&] { Say(0, MakeMessage(Kind::kState, 1, 0, 2, kFailedPrecondition, "a stateful function")); });
  EXPECT_EQ(outcome.code, kFailedPrecondition);
  EXPECT_EQ(outcome.message, "a stateful function");
}

TEST_F(SinkTest, RestoringWaitsForTheReader) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  const SinkState state{SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(5), Turn(5), "words"}}};
  const Outcome outcome = Beside([&] { return sink_->Restore(&iterator, state); },
                                 [&] {
                                   EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e1 5,1"}));
                                   Say(0, Make(Kind::kState, 1, 0, 1));
                                 });
  EXPECT_TRUE(outcome.ok());
  SinkState again;
  EXPECT_TRUE(sink_->Save(&iterator, &again).ok());
  ASSERT_EQ(again.lanes.size(), 1u);
  EXPECT_EQ(again.lanes[0].position.n, 5u);
}

TEST_F(SinkTest, ARestoredIteratorCountsItsStepsAnew) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  EXPECT_TRUE(Beside([&] { return Next(&iterator); }, [&] { Data(1, 0); }).ok());
  Data(1, 1);  // it says nothing before it takes this one
  EXPECT_TRUE(Next(&iterator).ok());
  const Outcome restored =
      Beside([&] { return sink_->Restore(&iterator, SinkState()); }, [&] { Say(0, Make(Kind::kState, 1, 0, 1)); });
  EXPECT_TRUE(restored.ok()) << restored.message;
  const Outcome outcome = Beside([&] { return Next(&iterator); }, [&] { sink_->Fail({kUnavailable, "gone"}); });
  EXPECT_EQ(outcome.message, "[rank 1 on node1, channel train, epoch 2, step 0] gone");
}

TEST_F(SinkTest, AnExhaustedIteratorHasHadItsEpoch) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator, next;
  Restore(&iterator, {SinkState::kExhausted, 3, 3, 2, TailStep(0), {{Position(0), Turn(0), ""}}});
  EXPECT_TRUE(Next(&iterator).ok() && end_);
  EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e1 18446744073709551615,1", "r0 OPEN e1 0,2", "r0 CLOSE e1 0,0"}));
  EXPECT_TRUE(Next(&iterator).ok() && end_);
  Beside([&] { return Next(&next); }, [&] { Say(0, Make(Kind::kEnd, 2, 0)); });
  EXPECT_EQ(Sent(), (Texts{"r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
}

TEST_F(SinkTest, WhatIsRestoredBelongsToItsIterator) {
  Make(plan::Schedule::kStatic);
  const SinkState state{SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(5), Turn(5), "words"}}};
  {
    SinkIterator gone;
    Restore(&gone, state);
    sink_->Drop(&gone);
    EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e1 5,1", "r0 WITHDRAW e1 0,0"}));
    SinkIterator older, newer;
    Restore(&older, state);
    Restore(&newer, SinkState());
    sink_->Drop(&older);
    EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e1 5,2", "r0 RESTORE e1 0,3"})) << "the newer one took its place";
    sink_->Drop(&newer);
    EXPECT_EQ(Sent(), (Texts{"r0 WITHDRAW e1 0,0"}));
  }
  SinkIterator restored, other;
  Restore(&restored, state);
  Sent();
  Beside([&] { return Next(&other); }, [&] { Say(0, Make(Kind::kEnd, 1, 0)); });
  EXPECT_EQ(Sent(), (Texts{"r0 WITHDRAW e1 0,0", "r0 OPEN e1 0,2", "r0 CLOSE e1 0,0"}));
  Beside([&] { return Next(&restored); }, [&] { Say(0, Make(Kind::kEnd, 2, 0)); });
  EXPECT_EQ(Sent(), (Texts{"r0 RESTORE e2 5,-1", "r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
}

TEST_F(SinkTest, AStateOfNoKindIsRefused) {
  Make(plan::Schedule::kStatic);
  SinkIterator iterator;
  const Outcome outcome = sink_->Restore(
      &iterator, {static_cast<SinkState::Kind>(3), 3, 3, 2, TailStep(0), {{Position(5), Turn(5), "words"}}});
  EXPECT_EQ(outcome.code, kDataLoss);
  EXPECT_NE(outcome.message.find("channel train"), std::string::npos) << outcome.message;
  EXPECT_EQ(Sent(), Texts());
}

}  // namespace
}  // namespace hvdata
