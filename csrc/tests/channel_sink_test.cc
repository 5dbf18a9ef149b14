// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "channel_sink_fixture.h"
#include "texts.h"

namespace hvdata {
namespace {

// The verdict on an epoch comes in two ways, and either may be first. So the error must not depend on which rank begins
// the next epoch.
TEST_F(SinkTest, AnEpochThatWasWrongIsAnErrorOnce) {
  const auto wrong = [this](int reader) { Say(reader, 1, wire::Verified{{kDataLoss, "1 row altered"}}); };
  for (const int heard : {0, 1, 2, 3}) {
    Make(plan::Schedule::kStatic, heard == 3 ? 2 : 1);
    SinkIterator first, second;
    if (heard == 0) {  // at its end
      EXPECT_EQ(NextBeside(&first, [&] { Say(0, 1, EndAt(0, kDataLoss, "1 row altered")); }).code, kDataLoss);
      wrong(0);
      sink_->Drop(&first);
    } else if (heard < 3) {  // when the next epoch is to begin, or in a wait for its first share
      EXPECT_TRUE(NextBeside(&first, [&] { Data(1, 0); }).ok());
      sink_->Drop(&first);
      Sent();
      if (heard == 1) wrong(0);
      const auto next = [&] { return Next(&second); };
      EXPECT_EQ((heard == 1 ? next() : Beside(next, [&] { wrong(0); })).code, kDataLoss);
      if (heard == 2) {
        EXPECT_EQ(Sent(), (Lines{"r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
      }
      continue;
    } else {  // before it begins: the other ranks are in it, and a reader deals to all ranks that have not left it
      for (const int reader : {0, 1}) wrong(reader);
      EXPECT_EQ(Next(&first).code, kDataLoss);
      EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,1", "r1 OPEN e1 0,1", "r0 CLOSE e1 0,0", "r1 CLOSE e1 0,0"}));
      EXPECT_TRUE(Next(&first).ok() && end_) << "an iterator that has told its error is over";
    }
    EXPECT_TRUE(NextBeside(&second, [&] { Data(2, 0); }).ok()) << heard;
  }
}

TEST_F(SinkTest, SeveralReadersTakeTurnsAndShareTheWindow) {
  Make(plan::Schedule::kStatic, 3);
  const Outcome outcome = NextBeside(&iterator_, [&] {
    Data(1, 0, 1);  // not its turn
    Data(1, 0, 0);
  });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,1", "r1 OPEN e1 0,1", "r2 OPEN e1 0,0",  //
                           "r0 TAKEN e1 1,1", "r2 TAKEN e1 0,1"}));
  EXPECT_TRUE(Next(&iterator_).ok());
  EXPECT_EQ(Sent(), (Lines{"r0 TAKEN e1 1,2", "r1 TAKEN e1 1,1"}));
  Say(2, 1, EndAt(0));
  Data(1, 1, 0);
  EXPECT_TRUE(Next(&iterator_).ok());
  EXPECT_EQ(Sent(), (Lines{"r1 TAKEN e1 1,2", "r2 TAKEN e1 0,0", "r0 TAKEN e1 2,3"}));
}

// A TAKEN from before the recall that overtakes RECALLED would give the reader credit for elements that no rank
// requests.
TEST_F(SinkTest, MessagesLeaveInTheOrderInWhichTheyCameAbout) {
  Make(plan::Schedule::kDynamic);
  HoldTaken();
  const Outcome outcome = NextBeside(&iterator_, [&] {
    Data(1, 0);
    in_taken_.get_future().wait();
    std::thread recall([&] { Say(0, 1, wire::Recall()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    go_on_.set_value();
    recall.join();
  });
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3", "r0 RECALLED e1 1,1"}));
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
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until the newer iterator waits: no message shows when
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r0 CLOSE e1 0,0", "r0 OPEN e2 0,2"}));
  Say(0, 2, wire::Recall());
  EXPECT_EQ(Sent(), (Lines{"r0 RECALLED e2 0,1"}));
  Data(2, 0);
  EXPECT_TRUE(new_wait.get().ok());
}

TEST_F(SinkTest, ASupersededIteratorSaysSo) {
  SinkIterator older, newer;
  EXPECT_TRUE(NextBeside(&older, [&] { Data(1, 0); }).ok());
  EXPECT_TRUE(NextBeside(&newer, [&] { Data(2, 0); }).ok());
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3", "r0 CLOSE e1 1,0",  //
                           "r0 OPEN e2 0,2", "r0 TAKEN e2 1,3"}));
  SinkState state;
  EXPECT_EQ(sink_->Save(&older, &state).code, kFailedPrecondition);
  const Outcome outcome = Next(&older);
  EXPECT_EQ(outcome.code, kFailedPrecondition);
  EXPECT_HAS(outcome.message,
             "this iterator was superseded: a newer one of the same channel runs on this rank "
             "(epoch 2)");
  sink_->Drop(&older);
  EXPECT_EQ(Sent(), Lines()) << "the newer one goes on";
}

TEST_F(SinkTest, CancelEndsAWait) {
  const Outcome outcome = NextBeside(&iterator_, [&] { sink_->Cancel(&iterator_); });
  EXPECT_EQ(outcome.code, kCancelled);
  EXPECT_EQ(outcome.Text(),
            "[rank 1 on node1, channel train, epoch 1, step 0] the iterator was cancelled while it "
            "waited for step 0 from reader 0 on host0");
}

TEST_F(SinkTest, CtrlCEndsAWaitAndStillReachesTheHandlerBefore) {
  static std::atomic<int> handled{0};
  struct sigaction handler = {}, before;
  handler.sa_handler = [](int) { ++handled; };
  sigaction(SIGINT, &handler, &before);
  Make(plan::Schedule::kStatic);
  const Outcome outcome = NextBeside(&iterator_, [] {
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
  EXPECT_HAS(outcome.message, "interrupted (SIGINT) while it waited for step 0");
  EXPECT_EQ(handled, 1);
}

TEST_F(SinkTest, AFailureEndsEveryWaitButNotWhatHasArrived) {
  SinkIterator iterator, late;
  EXPECT_TRUE(NextBeside(&iterator, [&] { Data(1, 0); }).ok());
  Data(1, 1);
  sink_->Fail({kUnavailable, "rank 0 on node0 has died"});
  sink_->Fail({kInternal, "something that follows from it"});
  EXPECT_TRUE(Next(&iterator).ok());
  const Outcome outcome = Next(&iterator);
  EXPECT_EQ(outcome.code, kUnavailable);
  EXPECT_EQ(outcome.Text(), "[rank 1 on node1, channel train, epoch 1, step 2] rank 0 on node0 has died");
  EXPECT_EQ(Next(&late).code, kUnavailable);
}

TEST_F(SinkTest, TheTimeLimitNamesTheReason) {
  Make(plan::Schedule::kStatic, 1, 0.1, 3);
  on_sent_ = [&](const Header& h) {  // a reader in the same process answers at once
    if (Is<wire::Why>(h)) Say(0, h.epoch, wire::Because{"it sleeps"});
  };
  CaptureLines();
  const Outcome outcome = Next(&iterator_);
  EXPECT_EQ(AnySeconds(CapturedLines()),
            "horovod_data: [rank 1 on node1, channel train, epoch 1, step 0] has waited N s for step 0 from reader 0 "
            "on host0: it sleeps\n");
  EXPECT_EQ(outcome.code, kDeadlineExceeded);
  EXPECT_EQ(AnySeconds(outcome.Text()),
            "[rank 1 on node1, channel train, epoch 1, step 0] waited N s for step 0 from reader 0 on host0: it "
            "sleeps. Fix the cause, "
            "or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)");
}

TEST_F(SinkTest, AReaderThatSaysNothing) {
  Make(plan::Schedule::kStatic, 1, 10, 0.1);
  const Outcome outcome = Next(&iterator_);
  EXPECT_HAS(outcome.message,
             "reader 0 on host0 has not answered: this reader writes a large state for a checkpoint, its "
             "process is stopped, or its link is silent");
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r0 WHY e1 0,0"}));
}

TEST_F(SinkTest, ARestoredIteratorCountsItsStepsAnew) {
  EXPECT_TRUE(NextBeside(&iterator_, [&] { Data(1, 0); }).ok());
  Data(1, 1);  // it sends nothing before it takes this share
  EXPECT_TRUE(Next(&iterator_).ok());
  const Outcome restored =
      Beside([&] { return sink_->Restore(&iterator_, SinkState()); }, [&] { Say(0, 1, wire::State{1, {}}); });
  EXPECT_TRUE(restored.ok()) << restored.message;
  const Outcome outcome = NextBeside(&iterator_, [&] { sink_->Fail({kUnavailable, "gone"}); });
  EXPECT_EQ(outcome.Text(), "[rank 1 on node1, channel train, epoch 2, step 0] gone");
}

TEST_F(SinkTest, AnExhaustedIteratorHasHadItsEpoch) {
  SinkIterator iterator, next;
  Restore(&iterator, {SinkState::kExhausted, 3, 3, 2, TailStep(0), {{Position(0), Turn(0), ""}}});
  EXPECT_TRUE(Next(&iterator).ok() && end_);
  EXPECT_EQ(Sent(), (Lines{"r0 RESTORE e1 18446744073709551615,1", "r0 OPEN e1 0,2", "r0 CLOSE e1 0,0"}));
  EXPECT_TRUE(Next(&iterator).ok() && end_);
  NextBeside(&next, [&] { Say(0, 2, EndAt(0)); });
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
}

TEST_F(SinkTest, WhatIsRestoredBelongsToItsIterator) {
  const SinkState state{SinkState::kRunning, 3, 3, 2, TailStep(0), {{Position(5), Turn(5), "words"}}};
  {
    SinkIterator gone;
    Restore(&gone, state);
    SinkState again;
    EXPECT_TRUE(sink_->Save(&gone, &again).ok());
    EXPECT_EQ(again.lanes.at(0).position.n, 5u);
    sink_->Drop(&gone);
    EXPECT_EQ(Sent(), (Lines{"r0 RESTORE e1 5,1", "r0 WITHDRAW e1 0,0"}));
    SinkIterator older, newer;
    Restore(&older, state);
    Restore(&newer, SinkState());
    sink_->Drop(&older);
    EXPECT_EQ(Sent(), (Lines{"r0 RESTORE e1 5,2", "r0 RESTORE e1 0,3"})) << "the newer one took its place";
    sink_->Drop(&newer);
    EXPECT_EQ(Sent(), (Lines{"r0 WITHDRAW e1 0,0"}));
  }
  SinkIterator restored, other;
  Restore(&restored, state);
  Sent();
  NextBeside(&other, [&] { Say(0, 1, EndAt(0)); });
  EXPECT_EQ(Sent(), (Lines{"r0 WITHDRAW e1 0,0", "r0 OPEN e1 0,2", "r0 CLOSE e1 0,0"}));
  NextBeside(&restored, [&] { Say(0, 2, EndAt(0)); });
  EXPECT_EQ(Sent(), (Lines{"r0 RESTORE e2 5,-1", "r0 OPEN e2 0,2", "r0 CLOSE e2 0,0"}));
}

TEST_F(SinkTest, AStateOfNoKindIsRefused) {
  const Outcome outcome = sink_->Restore(
      &iterator_, {static_cast<SinkState::Kind>(3), 3, 3, 2, TailStep(0), {{Position(5), Turn(5), "words"}}});
  EXPECT_EQ(outcome.code, kDataLoss);
  EXPECT_HAS(outcome.Text(), "channel train");
  EXPECT_EQ(Sent(), Lines());
}

}  // namespace
}  // namespace hvdata
