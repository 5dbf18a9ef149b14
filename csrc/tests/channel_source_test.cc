// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <thread>

#include "captured_lines.h"
#include "channel_source_fixture.h"

namespace hvdata {
namespace {

TEST_F(SourceTest, TheFirstOpenStartsAnEpochAndTheLastCloseEndsIt) {
  EXPECT_EQ(NextEpoch(), 0);
  source_->OnOpen(1, 1, 1);
  Begin(1);
  Deal();
  EXPECT_EQ(Sent(), (Texts{"1 DATA e1 0,1,0"}));
  source_->OnOpen(0, 1, 1);
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,1,0"}));
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 END e1 1,0,0", "1 END e1 1,0,0"}));
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->OnClose(0, 1, 1);
  source_->OnOpen(0, 2, 1);
  EXPECT_EQ(NextEpoch(), 0);
  source_->OnClose(1, 1, 1);
  EXPECT_EQ(source_->Linger(), Task::kStop);
  EXPECT_EQ(NextEpoch(), 0) << "the dealer has not put the input away";
  source_->End();
  EXPECT_EQ(NextEpoch(), 2);
}

// A wait for the first element that is cut short on every rank while the reader is busy with something else.
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
  EXPECT_EQ(Sent(), (Texts{"0 DATA e2 0,1,0", "1 DATA e2 0,1,0"}));
}

// It would rather have room for a quarter of them. But who has taken one step may not take more before others get theirs.
TEST_F(SourceTest, RoomForOneStepOfManyIsEnoughInTheEnd) {
  ChannelConfig config;
  config.prefetch = 16;
  Make(std::move(config), MakeWorld(0, 2, 1, true));
  source_->OnOpen(0, 1, 16);
  source_->OnOpen(1, 1, 16);
  Begin(1);
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
  source_->Deal(MakeStep(0, 2));  // what the pull gave after all
  EXPECT_EQ(source_->Await(), Task::kStop);
  EXPECT_EQ(Sent(), Texts());
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
  CaptureLines();
  Begin(1);
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [reader 0 on host0, channel train, epoch 1, step 0] rank 1 on node1 has left this channel; "
            "its share of every step is discarded\n");
}

TEST_F(SourceTest, WhatIsDroppedIsLogged) {
  source_->OnOpen(0, 1, 2);
  Begin(1);
  source_->Epoch()->Dropped(1, 1);
  CaptureLines();
  source_->Finish({});
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [reader 0 on host0, channel train, epoch 1, step 0] there were fewer elements than "
            "trainers, so the epoch had no step; use remainder=\"partial\" or \"pad\", or more elements\n"
            "horovod_data: [reader 0 on host0, channel train, epoch 1, step 0] remainder=\"drop\" left out 1 "
            "element(s) of this epoch\n");
}

TEST_F(SourceTest, AnEpochOfElementsWithoutRowsSaysWhyItHasNoStep) {
  source_->OnOpen(0, 1, 2);
  Begin(1);
  source_->Epoch()->Dropped(0, 1);
  CaptureLines();
  source_->Finish({});
  EXPECT_EQ(CapturedLines(),
            "horovod_data: [reader 0 on host0, channel train, epoch 1, step 0] there were fewer elements than "
            "trainers, so the epoch had no step; use remainder=\"partial\" or \"pad\", or more elements\n");
}

// However the epoch ends: with an error, or because everybody leaves it.
TEST_F(SourceTest, WhatIsDroppedOfAnEpochWithoutAnEndIsLoggedToo) {
  for (const bool fails : {true, false}) {
    const uint64_t epoch = fails ? 1 : 2;
    for (int t = 0; t < 2; ++t) source_->OnOpen(t, epoch, 2);
    Begin(epoch);
    Deal();
    source_->Epoch()->Dropped(1, 0);
    source_->Epoch()->Dropped(1, 0);
    CaptureLines();
    if (fails) source_->Finish({kInternal, "broken"});
    for (int t = 0; t < 2; ++t) source_->OnClose(t, epoch, 1);
    EXPECT_EQ(source_->Linger(), Task::kStop);
    source_->End();
    EXPECT_EQ(CapturedLines(), "horovod_data: [reader 0 on host0, channel train, epoch " + std::to_string(epoch) +
                                   ", step 1] remainder=\"drop\" left out 2 element(s) of this epoch\n");
  }
}

TEST_F(SourceTest, SavesAreAnsweredBetweenElementsAndAfterTheLast) {
  source_->OnOpen(0, 1, 1);
  source_->OnOpen(1, 1, 1);
  Begin(1);
  Deal();
  source_->OnTaken(0, 1, 1, 2);
  Sent();
  source_->OnSave(0, 1, 41);
  ASSERT_EQ(source_->Await(), Task::kSave) << "also while there is no room";
  EXPECT_EQ(source_->Epoch()->UntakenElements().size(), 1u);
  for (const auto& request : source_->TakeSaveRequests()) source_->AnswerSave(request, {}, "state");
  EXPECT_EQ(Sent(), (Texts{"0 STATE e1 0,41,0 state"}));
  source_->OnTaken(1, 1, 1, 2);
  EXPECT_EQ(source_->Await(), Task::kPull);
  EXPECT_EQ(source_->Epoch()->UntakenElements().size(), 0u);
  source_->Finish({});
  Sent();
  source_->OnSave(1, 1, 42);
  ASSERT_EQ(source_->Linger(), Task::kSave);
  for (const auto& request : source_->TakeSaveRequests()) source_->AnswerSave(request, {kInternal, "no"}, "");
  EXPECT_EQ(Sent(), (Texts{"1 STATE e1 0,42,13 no"}));
}

TEST_F(SourceTest, ASaveThatCannotBeServedIsRefused) {
  source_->OnOpen(0, 1, 1);
  source_->OnSave(1, 1, 5);
  Texts sent = Sent();
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

// Another reader was quicker, and the trainer has had a step of that one.
TEST_F(SourceTest, ASaveThatComesBeforeTheEpochBeginsHereWaits) {
  source_->OnOpen(0, 1, 1);
  source_->OnSave(0, 1, 5);
  EXPECT_EQ(Sent(), Texts());
  Begin(1);
  ASSERT_EQ(source_->Await(), Task::kSave);
  const auto requests = source_->TakeSaveRequests();
  ASSERT_EQ(requests.size(), 1u);
  source_->AnswerSave(requests[0], {}, "words");
  EXPECT_EQ(Sent(), (Texts{"0 STATE e1 0,5,0 words"}));
}

TEST_F(SourceTest, ARestoredEpochWaitsForEveryone) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 0}, 1);
  EXPECT_EQ(Sent(), (Texts{"0 STATE e1 0,1,0"}));
  source_->OnOpen(0, 1, 2);
  EXPECT_EQ(NextEpoch(), 0);
  source_->OnWhy(0, 1, 0);
  EXPECT_EQ(Sent(), (Texts{"0 BECAUSE e1 0,0,0 rank 1 on node1 has not begun epoch 1"}));
  source_->OnOpen(1, 1, 2);
  ASSERT_EQ(NextEpoch(), 1);
  const auto handed = source_->Begin(1, nullptr);
  ASSERT_EQ(handed.size(), 1u);
  EXPECT_EQ(handed.at(0).state, "words");
  EXPECT_EQ(handed.at(0).position.n, 4u);
}

// The dealer may run the pipeline for an hour to come to what was restored.
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
  source_->Finish({kCancelled, "the input was cancelled"});
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  EXPECT_EQ(Sent(), Texts()) << "nobody is told of an error";
  source_->OnOpen(0, 2, 2);
  EXPECT_EQ(NextEpoch(), 2);
}

TEST_F(SourceTest, ARestoredStateCanBeTakenBack) {
  source_->OnRestore(0, 1, {"words", 4, 1, 2, 0}, 1);
  source_->OnOpen(1, 1, 2);
  EXPECT_EQ(NextEpoch(), 0);
  Sent();
  source_->OnWithdraw(0, 1);
  EXPECT_EQ(Sent(), Texts());
  Begin(1);
}

// One that was restored exhausted is done with the epoch at once, and may restore into the next one already.
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
  source_->Finish({});
  EXPECT_EQ(Sent(), (Texts{"1 END e1 0,0,0"})) << "element 0 is behind rank 1, and everything behind rank 0";
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
  EXPECT_EQ(Sent(), (Texts{"1 STATE e1 0,1,0"}));
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
  EXPECT_EQ(Sent(), (Texts{"0 STATE e1 0,5,0", "1 STATE e1 0,6,0 words"}));
}

TEST_F(SourceTest, DynamicKnowsWhatEachHasTakenSinceASnapshot) {
  Make(plan::Schedule::kDynamic);
  source_->OnOpen(0, 1, 2);
  source_->OnOpen(1, 1, 2);
  Begin(1);
  Deal(0);
  Deal(0);
  Deal(0);
  source_->OnTaken(0, 1, 1, 3);
  source_->Epoch()->UntakenElements();
  source_->OnTaken(0, 1, 2, 4);
  source_->OnClose(1, 1, 1);
  EXPECT_EQ(source_->Epoch()->TakenSince(0), (std::vector<uint64_t>{2}));
  EXPECT_EQ(source_->Epoch()->TakenSince(1), (std::vector<uint64_t>{1}));
}

// A trainer in our own process is told through the queue of the post, as any other: its answer comes later, and in turn.
TEST_F(SourceTest, ARecallIsAnsweredAfterItWasSent) {
  world_ = MakeWorld(0, 2, 1, false);
  std::deque<std::pair<int, Header>> queue;
  ChannelConfig config;
  config.schedule = plan::Schedule::kDynamic;
  PlainSource source(config, &world_, 60, [&](int trainer, Header h, const Share*) {  // as members here
    sent_.push_back(std::to_string(trainer) + " " + h.name());
    if (KindOf(h) == Kind::kRecall) queue.emplace_back(trainer, std::move(h));
  });
  source.OnOpen(0, 1, 2);
  source.Begin(1, nullptr);
  source.Start({});
  ASSERT_EQ(source.Await(), Task::kPull);
  source.Deal(MakeStep(0, 0));
  source.OnOpen(1, 1, 2);
  source.Finish({});
  EXPECT_EQ(Sent(), (Texts{"0 DATA", "0 RECALL"}));
  ASSERT_EQ(queue.size(), 1u);
  source.OnRecalled(queue[0].first, queue[0].second.epoch, 0, 0);
  EXPECT_EQ(Sent(), (Texts{"1 DATA"}));
}

// Who waits may do so in another library, where nobody asks why.
TEST_F(SourceTest, WithoutRoomForLongTheReaderNamesTheRankThatTakesNothing) {
  stall_seconds_ = 0.1;
  Make(plan::Schedule::kStatic);
  source_->OnOpen(0, 1, 1);
  source_->OnOpen(1, 1, 1);
  Begin(1);
  Deal();
  const auto log_of_a_wait = [this] {
    CaptureLines();
    std::thread then([this] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      source_->OnTaken(1, 1, source_->Steps(), source_->Steps() + 1);
    });
    EXPECT_EQ(source_->Await(), Task::kPull);
    then.join();
    return CapturedLines();
  };
  source_->OnTaken(0, 1, 1, 2);
  EXPECT_EQ(AnySeconds(log_of_a_wait()),
            "horovod_data: [reader 0 on host0, channel train, epoch 1, step 1] nothing has moved for N s: reader 0 on "
            "host0 has dealt "
            "1 steps and waits until rank 1 on node1 has taken more of them\n");
}

TEST_F(SourceTest, ThatAllRanksAreBusyForLongIsNoStall) {
  stall_seconds_ = 0.1;
  Make(plan::Schedule::kStatic);
  source_->OnOpen(0, 1, 1);
  source_->OnOpen(1, 1, 1);
  Begin(1);
  Deal();
  CaptureLines();
  std::thread then([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    source_->OnTaken(0, 1, 1, 2);
    source_->OnTaken(1, 1, 1, 2);
  });
  EXPECT_EQ(source_->Await(), Task::kPull);
  then.join();
  EXPECT_EQ(CapturedLines(), "");
}

TEST_F(SourceTest, TheReaderSaysWhy) {
  const auto why = [&](uint64_t epoch) {
    source_->OnWhy(0, epoch, 3);
    Texts sent = Sent();
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
  source_->OnOpen(0, 1, 0);
  source_->OnOpen(1, 1, 0);
  Begin(1);
  source_->OnTaken(0, 1, 0, 1);
  source_->OnSave(0, 1, 1);
  EXPECT_EQ(source_->Await(), Task::kSave) << "no room yet";
  source_->TakeSaveRequests();
  source_->OnTaken(1, 1, 0, 1);
  Deal();
  EXPECT_EQ(Sent(), (Texts{"0 DATA e1 0,1,0", "1 DATA e1 0,1,0"}));
}

}  // namespace
}  // namespace hvdata
