// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <condition_variable>
#include <future>
#include <thread>

#include "channel_source_fixture.h"
#include "texts.h"

namespace hvdata {
namespace {

TEST_F(SourceTest, TimesBeginAgainInTheMiddleOfAnEpoch) {
  OpenAndBegin(1, 9);
  Deal(), Deal();
  const ReaderTimes before = source_->Times(true);
  EXPECT_EQ(before.steps, 2u);
  EXPECT_EQ(before.elements, 2u);
  Deal();
  EXPECT_EQ(source_->Times(false).steps, 1u);
  CloseAll(1, 3);
  const ReaderTimes after = source_->Times(true);
  EXPECT_EQ(after.steps, 1u);
  EXPECT_EQ(after.elements, 1u);
  EXPECT_EQ(source_->Times(false).steps, 0u);
}

// Every rank closes the epoch before its first element, while the reader is busy with something else.
TEST_F(SourceTest, AnEpochThatEveryoneClosedBeforeItBeganIsPassedThrough) {
  for (int t = 0; t < 2; ++t) {
    source_->OnOpen(t, 1, 2);
    source_->OnClose(t, 1, 0);
    source_->OnOpen(t, 2, 2);
  }
  Begin(1);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  Begin(2);
  Deal();
  EXPECT_EQ(Sent(), (Lines{"0 DATA e2 0,1,0", "1 DATA e2 0,1,0"}));
}

// The dealer prefers to wait until a quarter of the window is free. A trainer that has taken one step may have to wait
// until the other trainers get their steps. So in the end the dealer deals with room for one step.
TEST_F(SourceTest, RoomForOneStepOfManyIsEnoughInTheEnd) {
  ChannelConfig config;
  config.prefetch = 16;
  Make(std::move(config), MakeWorld(0, 2, 1, true));
  OpenAndBegin(1, 16);
  for (int step = 0; step < 16; ++step) Deal();
  for (uint64_t step = 1; step <= 3; ++step) {
    std::thread trainers([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * (step % 2)));  // while the dealer is patient, and later
      for (int t = 0; t < 2; ++t) source_->OnTaken(t, 1, step, 16 + step);
    });
    Deal();
    trainers.join();
  }
  EXPECT_EQ(source_->Steps(), 19u);
}

TEST_F(SourceTest, TheLastCloseCancelsThePullOnce) {
  std::mutex mu;
  std::condition_variable changed;
  int calls = 0;
  source_->OnOpen(0, 1, 2);
  source_->Begin(1, [&] {
    std::lock_guard<std::mutex> lock(mu);
    ++calls;
    changed.notify_all();
  });
  source_->Start({});
  EXPECT_EQ(source_->Await(), Task::kPull);
  source_->OnClose(0, 1, 0);
  source_->Depart(1);
  std::unique_lock<std::mutex> lock(mu);
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return calls > 0; }));
  lock.unlock();
  source_->Shut();
  source_->Deal(MakeStep(0, 2));  // the pull has yielded elements after all
  EXPECT_EQ(source_->Await(), Task::kStop);
  EXPECT_EQ(Sent(), Lines());
  lock.lock();
  EXPECT_EQ(calls, 1);
}

TEST_F(SourceTest, TheChannelEndsWhenAllAreGoneAndTheDealerIsOut) {
  source_->OnOpen(0, 1, 2);
  Begin(1);
  source_->Depart(0);
  source_->Depart(1);
  EXPECT_EQ(NextEpoch(), 0);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  EXPECT_EQ(NextEpoch(), -1);
}

TEST_F(SourceTest, WhoeverShutsCanAwaitTheDealersEnd) {
  source_->AwaitEnd(std::chrono::hours(1));  // of no epoch
  source_->OnOpen(0, 1, 2);
  Begin(1);
  source_->Shut();
  source_->AwaitEnd(std::chrono::milliseconds(1));  // user code holds the dealer up
  std::atomic<bool> ended{false};
  std::thread dealer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
    source_->End();
  });
  source_->AwaitEnd(std::chrono::hours(1));
  EXPECT_TRUE(ended);
  dealer.join();
}

TEST_F(SourceTest, OneWhoHasLeftIsNamed) {
  source_->Depart(1);
  source_->OnOpen(0, 1, 2);
  EXPECT_EQ(LinesOf([&] { Begin(1); }),
            "horovod_data: [reader 0 on host0, channel train, epoch 1, step 0] rank 1 on node1 has left this channel; "
            "its share of every step is discarded\n");
}

TEST_F(SourceTest, WhatIsDroppedIsLogged) {
  for (const int elements : {1, 0}) {  // too few for a step, or without rows
    SetUp();
    source_->OnOpen(0, 1, 2);
    Begin(1);
    source_->Epoch()->Dropped(elements, 1);
    CaptureLines();
    source_->Epoch()->Finish({});
    const std::string where = "horovod_data: [reader 0 on host0, channel train, epoch 1, step 0] ";
    EXPECT_EQ(CapturedLines(),
              where +
                  "there were fewer elements than trainers, so the epoch had no step; use remainder=\"partial\" or "
                  "\"pad\", or more elements\n" +
                  (elements > 0 ? where + "remainder=\"drop\" left out 1 element(s) of this epoch\n" : ""));
  }
}

// As behind a generator object, which can be read once.
TEST_F(SourceTest, AnEpochOfNothingBehindOneWithStepsIsLoggedOnce) {
  for (const uint64_t epoch : {1, 2, 3, 4}) {
    OpenAndBegin(epoch, 2);
    if (epoch == 2) Deal(), Deal();
    CaptureLines();
    source_->Epoch()->Finish({});
    const std::string line =
        "horovod_data: [reader 0 on host0, channel train, epoch 3, step 0] the pipeline yielded nothing in this epoch, "
        "and 2 step(s) in the epoch before. Perhaps its source can be read only once, as a generator object: make the "
        "source inside the function that Dataset.from_generator() calls\n";
    EXPECT_EQ(CapturedLines(), epoch == 3 ? line : "") << "in epoch " << epoch;
    CloseAll(epoch, epoch == 2 ? 2 : 0);
  }
}

// However the epoch ends: with an error, or because all trainers leave it.
TEST_F(SourceTest, WhatIsDroppedOfAnEpochWithoutAnEndIsLoggedToo) {
  for (const bool fails : {true, false}) {
    const uint64_t epoch = fails ? 1 : 2;
    OpenAndBegin(epoch, 2);
    Deal();
    source_->Epoch()->Dropped(1, 0);
    source_->Epoch()->Dropped(1, 0);
    CaptureLines();
    if (fails) source_->Epoch()->Finish({kInternal, "broken"});
    CloseAll(epoch, 1);
    EXPECT_EQ(CapturedLines(), "horovod_data: [reader 0 on host0, channel train, epoch " + std::to_string(epoch) +
                                   ", step 1] remainder=\"drop\" left out 2 element(s) of this epoch\n");
  }
}

TEST_F(SourceTest, ASaveThatCannotBeServedIsRefused) {
  source_->OnOpen(0, 1, 1);
  source_->OnSave(1, 1, 5);
  Lines sent = Sent();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].substr(0, 16), "1 STATE e1 0,5,9") << "it has not opened the epoch";
  Begin(1);
  source_->OnSave(0, 1, 6);
  source_->OnClose(0, 1, 0);
  source_->OnClose(1, 1, 0);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  sent = Sent();
  ASSERT_EQ(sent.size(), 1u) << "a request that the epoch's end overtook is answered too";
  EXPECT_EQ(sent[0], "0 STATE e1 0,6,0") << "its sink knows whether it has seen the end";
}

TEST_F(SourceTest, ARestoredEpochWaitsForEveryone) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 0}, 1);
  EXPECT_EQ(Sent(), (Lines{"0 STATE e1 0,1,0"}));
  source_->OnOpen(0, 1, 2);
  EXPECT_EQ(NextEpoch(), 0);
  source_->OnWhy(0, 1, 0);
  EXPECT_EQ(Sent(), (Lines{"0 BECAUSE e1 0,0,0 rank 1 on node1 has not begun epoch 1"}));
  source_->OnOpen(1, 1, 2);
  ASSERT_EQ(NextEpoch(), 1);
  const auto handed = source_->Begin(1, nullptr);
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed.at(0).state, "words");
  EXPECT_EQ(handed.at(0).position.n, 4u);
}

// The dealer may run the pipeline for an hour until it reaches the restored position.
TEST_F(SourceTest, ARestoredEpochThatAllHaveLeftIsNotRunAgain) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 0}, 1);
  for (const int t : {0, 1}) source_->OnOpen(t, 1, 2);
  ASSERT_EQ(NextEpoch(), 1);
  std::promise<void> promise;
  std::future<void> cancelled = promise.get_future();
  source_->Begin(1, [&] { promise.set_value(); });
  source_->OnClose(0, 1, 0);
  EXPECT_EQ(cancelled.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout) << "rank 1 waits for it";
  source_->OnClose(1, 1, 0);
  ASSERT_EQ(cancelled.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  Sent();
  source_->Start({4, 4});
  source_->Epoch()->Finish({kCancelled, "the input was cancelled"});
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  EXPECT_EQ(Sent(), Lines()) << "nobody is told of an error";
  source_->OnOpen(0, 2, 2);
  EXPECT_EQ(NextEpoch(), 2);
}

TEST_F(SourceTest, ARestoredStateCanBeTakenBack) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 0}, 1);
  source_->OnOpen(1, 1, 2);
  EXPECT_EQ(NextEpoch(), 0);
  Sent();
  source_->OnWithdraw(0, 1);
  EXPECT_EQ(Sent(), Lines());
  Begin(1);
}

// An iterator that was restored at its end has ended the epoch at once. It may already restore into the next epoch.
TEST_F(SourceTest, StatesWaitForTheirEpoch) {
  source_->OnRestore(0, 1, {"", kAllTaken.n, 1, 0, 0}, 1);
  source_->OnOpen(0, 1, 2);
  source_->OnClose(0, 1, 0);
  source_->OnRestore(0, 2, {"", kAllTaken.n, 1, 0, 0}, 2);
  source_->OnOpen(0, 2, 2);
  source_->OnClose(0, 2, 0);
  source_->OnRestore(1, 1, {"words", 3, 1, 3, 0}, 1);
  EXPECT_EQ(NextEpoch(), 0);
  source_->OnOpen(1, 1, 2);
  ASSERT_EQ(NextEpoch(), 1);
  const auto handed = source_->Begin(1, nullptr);
  ASSERT_EQ(handed.size(), 2u);
  EXPECT_EQ(handed.at(0).position.n, kAllTaken.n);
  source_->Start({kAllTaken.n, 3});
  Sent();
  Deal();
  source_->Epoch()->Finish({});
  EXPECT_EQ(Sent(), (Lines{"1 END e1 0,0,0"})) << "element 0 is behind rank 1, and everything behind rank 0";
  source_->OnClose(1, 1, 0);
  EXPECT_EQ(source_->Linger(), Task::kStop);
  source_->End();
  source_->OnOpen(1, 2, 2);
  ASSERT_EQ(NextEpoch(), 2);
  EXPECT_EQ(source_->Begin(2, nullptr).count(0), 1u);
}

TEST_F(SourceTest, AnUnusedIteratorIsNeverRestoredTooLate) {
  source_->OnOpen(0, 1, 2);
  Begin(1);
  source_->OnRestore(1, 1, {"", 0, 1, 0, 0}, 1);
  EXPECT_EQ(Sent(), (Lines{"1 STATE e1 0,1,0"}));
  source_->OnRestore(1, 1, {"", kAllTaken.n, 1, 0, 0}, 2);
  EXPECT_EQ(Sent()[0].substr(0, 22), "0 END e1 0,9,0 [reader");
}

TEST_F(SourceTest, LastWordsAreForThoseWhoHaveSeenTheEnd) {
  source_->OnOpen(0, 1, 1);
  Begin(1);
  source_->OnClose(0, 1, 0);
  source_->OnClose(1, 1, 0);
  source_->KeepState(1, "words");
  source_->OnSave(0, 1, 5);
  source_->End();
  source_->OnSave(1, 1, 6);
  EXPECT_EQ(Sent(), (Lines{"0 STATE e1 0,5,0", "1 STATE e1 0,6,0 words"}));
}

// A rank that waits may do so in another library, which asks no reader. If all ranks are equally busy, that is no
// stall.
TEST_F(SourceTest, WithoutRoomForLongTheReaderNamesTheRankThatTakesNothing) {
  stall_seconds_ = 0.1;
  for (const bool one_takes : {true, false}) {
    Make(plan::Schedule::kStatic);
    OpenAndBegin(1, 1);
    Deal();
    if (one_takes) source_->OnTaken(0, 1, 1, 2);
    CaptureLines();
    std::thread then([this, one_takes] {
      std::this_thread::sleep_for(std::chrono::milliseconds(one_takes ? 3000 : 400));
      for (int t = 0; t < 2; ++t) source_->OnTaken(t, 1, 1, 2);
    });
    EXPECT_EQ(source_->Await(), Task::kPull);
    then.join();
    EXPECT_EQ(AnySeconds(CapturedLines()),
              one_takes
                  ? "horovod_data: [reader 0 on host0, channel train, epoch 1, step 1] nothing has moved for N s: "
                    "reader 0 on host0 has dealt 1 steps and waits until rank 1 on node1 has taken more of them\n"
                  : "");
  }
}

TEST_F(SourceTest, TheReaderSaysWhy) {
  const auto why = [&](uint64_t epoch) {
    source_->OnWhy(0, epoch, 3);
    Lines sent = Sent();
    return sent.size() == 1 ? sent[0].substr(sent[0].find(",0,0 ") + 5) : "";
  };
  source_->OnOpen(0, 1, 1);
  Begin(1);
  EXPECT_EQ(source_->Await(), Task::kPull);
  EXPECT_EQ(why(1),
            "the pipeline of reader 0 on host0 has not produced step 0 for 0 s (a Python generator that sleeps "
            "can't be interrupted)");
  source_->Deal(MakeStep(0, 2));
  source_->OnOpen(1, 1, 1);
  source_->OnTaken(0, 1, 1, 2);
  source_->OnTaken(1, 1, 0, 1);
  Sent();
  EXPECT_EQ(why(1), "reader 0 on host0 has dealt 1 steps and waits until rank 1 on node1 has taken more of them");
  source_->OnClose(0, 1, 1);
  source_->OnOpen(0, 2, 1);
  EXPECT_EQ(why(2), "rank 1 on node1 has not finished epoch 1");
}

TEST_F(SourceTest, AReaderWithoutAPlaceInTheWindowWaitsForItsTurn) {
  Make(plan::Schedule::kStatic, 3);  // this is reader 2, and the window is 2 steps
  OpenAndBegin(1, 0);
  source_->OnTaken(0, 1, 0, 1);
  source_->OnSave(0, 1, 1);
  EXPECT_EQ(source_->Await(), Task::kSave) << "no room yet";
  source_->TakeSaveRequests();
  source_->OnTaken(1, 1, 0, 1);
  Deal();
  EXPECT_EQ(Sent(), (Lines{"0 DATA e1 0,1,0", "1 DATA e1 0,1,0"}));
}

}  // namespace
}  // namespace hvdata
