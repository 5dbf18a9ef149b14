// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <future>
#include <memory>

#include "channel_source_fixture.h"
#include "texts.h"

namespace hvdata {
namespace {

// Trainers that count their steps leave after the last one. They count with `elements`, as tf.data does, or like the
// epoch before.
class CountedStepsTest : public SourceTest {
 protected:
  void Make(int64_t elements) {
    ChannelConfig config;
    config.elements = elements;
    SourceTest::Make(std::move(config), MakeWorld(0, 2, 1, true));
  }
  void Open(uint64_t epoch) {
    OpenAll(epoch, 9);
    ASSERT_EQ(NextEpoch(), static_cast<int64_t>(epoch));
    cancelled_ = std::make_shared<std::promise<void>>();
    source_->Begin(epoch, [cancelled = cancelled_] { cancelled->set_value(); });
  }
  void Leave(uint64_t epoch, bool go = false) {
    for (int t = 0; t < 2; ++t) {
      source_->OnClose(t, epoch, 2);
      if (go) source_->Depart(t);
    }
  }
  // Both trainers take two steps of two elements each, and leave. A trainer that departs does so after its steps, too.
  void TakeTwoAndLeave(uint64_t epoch, bool go = false) {
    Open(epoch);
    source_->Start({});
    Deal();
    Deal();
    Sent();
    Leave(epoch, go);
  }
  bool IsCancelled(int milliseconds) {
    return cancelled_->get_future().wait_for(std::chrono::milliseconds(milliseconds)) == std::future_status::ready;
  }

  std::shared_ptr<std::promise<void>> cancelled_;
};

TEST_F(CountedStepsTest, TheDealerGoesOnToAnEndThatIsNear) {
  for (const bool go : {false, true}) {
    Make(5);
    TakeTwoAndLeave(1, go);
    EXPECT_EQ(source_->Await(), Task::kPull) << "one element, too few for a step";
    EXPECT_FALSE(IsCancelled(50));
    source_->Epoch()->Dropped(1, 1);
    source_->Epoch()->Finish({});
    EXPECT_EQ(source_->Linger(), Task::kStop);
    source_->End();
    EXPECT_EQ(Sent(), go ? Lines() : (Lines{"0 END e1 0,0,0", "1 END e1 0,0,0"}))
        << "they have left, and are to know what was dropped";
  }
}

TEST_F(CountedStepsTest, AnEpochThatIsNotAtItsEndIsLeft) {
  for (const int64_t elements : {-2, -1, 6, 7}) {
    Make(elements);
    TakeTwoAndLeave(1);
    EXPECT_EQ(source_->Await(), Task::kStop);
    source_->End();
    EXPECT_EQ(Sent(), Lines());
  }
}

TEST_F(CountedStepsTest, AnEpochIsAsLongAsTheOneBefore) {
  Make(-2);
  TakeTwoAndLeave(1);
  EXPECT_EQ(source_->Await(), Task::kStop) << "nobody knows";
  source_->End();
  Open(2);
  source_->Start({});
  Deal();
  Deal();
  source_->Epoch()->Finish({});
  Leave(2);
  source_->End();
  TakeTwoAndLeave(3);
  EXPECT_EQ(source_->Await(), Task::kPull);
  source_->Deal(MakeStep(2, 2));  // the epoch is longer than expected
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
}

TEST_F(CountedStepsTest, WhoWaitsForTheNextEpochDoesNotWaitForTheEndForEver) {
  Make(4);
  TakeTwoAndLeave(1);
  EXPECT_EQ(source_->Await(), Task::kPull);
  source_->OnOpen(0, 2, 9);
  source_->OnWhy(0, 2, 0);
  EXPECT_TRUE(IsCancelled(10000));
  source_->Epoch()->Finish({kCancelled, "cancelled"});
  EXPECT_EQ(source_->Await(), Task::kStop);
  EXPECT_EQ(source_->Linger(), Task::kStop);
  source_->End();
  source_->OnOpen(1, 2, 9);
  EXPECT_EQ(NextEpoch(), 2);
}

TEST_F(CountedStepsTest, WhoHasWaitedBeforeTheOthersLeftDoesNotAskAgain) {
  Make(4);
  Open(1);
  std::future<void> cancelled = cancelled_->get_future();
  source_->Start({});
  Deal();
  Deal();
  source_->OnClose(1, 1, 2);
  source_->OnOpen(1, 2, 9);
  source_->OnWhy(1, 2, 0);
  EXPECT_EQ(cancelled.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout)
      << "the other one may want more";
  source_->OnClose(0, 1, 2);
  EXPECT_EQ(source_->Await(), Task::kStop);
  EXPECT_EQ(cancelled.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  source_->End();
}

// The reader is ahead of the ranks, so the number of dealt steps does not say how many they have taken.
TEST_F(CountedStepsTest, AnEpochThatIsBrokenOffWhenAllIsDealtIsLeft) {
  for (const auto schedule : {plan::Schedule::kStatic, plan::Schedule::kDynamic}) {
    ChannelConfig config;
    config.elements = schedule == plan::Schedule::kStatic ? 4 : 2;
    config.schedule = schedule;
    SourceTest::Make(std::move(config), MakeWorld(0, 2, 1, true));
    OpenAndBegin(1, 9);
    const int shares = schedule == plan::Schedule::kStatic ? 2 : 1;
    Deal(shares);
    Deal(shares);
    Sent();
    source_->OnClose(0, 1, 1);
    source_->OnClose(1, 1, 0);
    EXPECT_EQ(source_->Await(), Task::kStop);
    source_->End();
    EXPECT_EQ(Sent(), Lines());
  }
}

TEST_F(CountedStepsTest, AnEpochThatWasSavedWithMoreRanksEndsWhereItsElementsEnd) {
  Make(12);
  for (int t = 0; t < 2; ++t) source_->OnRestore(t, 1, {"words", 8, 1, 2}, 1);  // two steps of four ranks
  Open(1);
  source_->Start({8, 8}, 2);
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(source_->Await(), Task::kPull);
    source_->Deal(MakeStep(4 + static_cast<uint64_t>(step), 2));
  }
  Leave(1);
  EXPECT_EQ(source_->Await(), Task::kPull) << "its end is near";
  source_->Epoch()->Finish({});
  source_->End();
}

TEST_F(CountedStepsTest, AnErrorInPlaceOfTheEndIsSaid) {
  Make(4);
  TakeTwoAndLeave(1);
  EXPECT_EQ(source_->Await(), Task::kPull);
  EXPECT_HAS(LinesOf([&] { source_->Epoch()->Finish({kInternal, "a truncated record"}, true); }),
             "channel train, epoch 1, step 2] a truncated record");
  source_->End();
}

TEST_F(CountedStepsTest, AReaderThatIsShutDownTellsNobodyOfAnEnd) {
  Make(6);
  OpenAndBegin(1, 9);
  Deal();
  source_->Epoch()->Dropped(1, 0);
  Sent();
  source_->Shut();
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  EXPECT_EQ(Sent(), Lines()) << "their epoch is not over";
}

}  // namespace
}  // namespace hvdata
