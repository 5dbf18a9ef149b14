// SPDX-License-Identifier: Apache-2.0
// The order of a sink's messages, answers for which no thread waits any more, and messages without sense.
#include <random>

#include "channel_sink_fixture.h"
#include "wire_samples.h"

namespace hvdata {
namespace {

class SinkOfSchedule : public SinkTest, public testing::WithParamInterface<plan::Schedule> {};
INSTANTIATE_TEST_SUITE_P(Schedules, SinkOfSchedule, testing::Values(plan::Schedule::kStatic, plan::Schedule::kDynamic));

// One thread takes a share and is about to send TAKEN. Another thread departs and sends BYE. A TAKEN after BYE would
// make the reader believe that the trainer is still there.
TEST_P(SinkOfSchedule, NothingIsTakenBehindALeave) {
  Make(GetParam());
  HoldTaken();
  std::future<void> left;
  Lines before_bye;
  const auto leave = [&] {
    sink_->Depart({kUnavailable, "shut down"});
    before_bye = Sent();  // here the engine sends BYE, and a released op sends RELEASE
  };
  const auto data = [&] {
    Data(1, 0);
    in_taken_.get_future().wait();
    left = std::async(std::launch::async, leave);
    EXPECT_EQ(left.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout)
        << "Leave must not overtake a TAKEN";
    go_on_.set_value();
  };
  const Outcome outcome = NextBeside(&iterator_, data);
  left.get();
  EXPECT_TRUE(outcome.ok()) << "the share was taken";
  EXPECT_EQ(before_bye, (Lines{"r0 OPEN e1 0,2", "r0 TAKEN e1 1,3", "r0 CLOSE e1 1,0"}));
  on_send_ = nullptr;
  Data(1, 1);
  EXPECT_EQ(Next(&iterator_).code, kUnavailable);
  SinkIterator late;
  EXPECT_EQ(Next(&late).code, kUnavailable);
  sink_->Drop(&iterator_);
  EXPECT_EQ(Sent(), Lines()) << "behind a Leave";
}

TEST_F(SinkTest, WhatHasArrivedIsNotTakenBehindALeave) {
  EXPECT_TRUE(NextBeside(&iterator_, [&] { Data(1, 0); }).ok());
  Data(1, 1);
  Sent();
  sink_->Depart({kUnavailable, "shut down"});
  EXPECT_EQ(Sent(), (Lines{"r0 CLOSE e1 1,0"}));
  EXPECT_EQ(Next(&iterator_).code, kUnavailable);
  EXPECT_EQ(Sent(), Lines());
}

TEST_F(SinkTest, AnswersThatNobodyWaitsForAreDropped) {
  SinkState state;
  EXPECT_TRUE(NextBeside(&iterator_, [&] { Data(1, 0); }).ok());
  Outcome outcome = Beside([&] { return sink_->Save(&iterator_, &state); }, [&] { sink_->Cancel(&iterator_); });
  EXPECT_EQ(outcome.code, kCancelled);
  Say(0, 1, wire::State{1, {kOk, "late"}});
  for (const int64_t request : {2, 3, -1, 0}) Say(0, 1, wire::State{request, {kOk, "never asked for"}});
  outcome = Beside([&] { return sink_->Save(&iterator_, &state); }, [&] { Say(0, 1, wire::State{2, {kOk, "words"}}); });
  EXPECT_TRUE(outcome.ok()) << outcome.message;
  EXPECT_EQ(state.lanes.at(0).reader_state, "words") << "not what came before it was asked for";
}

TEST_F(SinkTest, ASaveBehindACancelledNextWorksAtOnce) {
  SinkState state;
  EXPECT_EQ(NextBeside(&iterator_, [&] { sink_->Cancel(&iterator_); }).code, kCancelled);
  const Outcome outcome =
      Beside([&] { return sink_->Save(&iterator_, &state); }, [&] { Say(0, 1, wire::State{1, {kOk, "words"}}); });
  EXPECT_TRUE(outcome.ok()) << outcome.message;
}

TEST_P(SinkOfSchedule, MessagesWithoutSenseCrashNothing) {
  std::mt19937_64 random(7);
  const wire::Filler filler{wire::Filler::kRandom, &random};
  int shares = 0;
  for (int round = 0; round < 20; ++round) {
    Make(GetParam(), 1 + round % 3, 0, 0.0005);  // a wait is over at once
    auto iterator = std::make_unique<SinkIterator>();
    SinkState state;
    for (int step = 0; step < 1000; ++step) {
      const auto reader = static_cast<int>(random() % static_cast<uint64_t>(world_.source_count()));
      const auto few = [&] { return random() % 4; };
      Header header;
      switch (random() % 6) {
        case 0:
          header.message = EndAt(0, few() == 0 ? kInternal : kOk, "text");
          break;
        case 1:
          header.message = wire::State{static_cast<int64_t>(few()) + step / 20, {kOk, "text"}};
          break;
        case 2:
          header.message = wire::Recall();
          break;
        case 3:
          header.message = wire::Filled(random() % wire::kKinds, filler);
          break;
        default:
          header.message = DataAt(few(), few(), few());
      }
      header.channel = 7;
      header.epoch = random() % 8 ? iterator->epoch : filler.Any();
      sink_->Handle(reader, std::move(header), std::make_shared<int>(step));
      const uint64_t asked = random() % 60;
      if (asked == 0) sink_->Save(iterator.get(), &state);
      if (asked == 1) sink_->Restore(iterator.get(), state);
      if (asked > 50) shares += Next(iterator.get()).ok() && !end_;
      if (asked != 2) continue;
      sink_->Drop(iterator.get());
      iterator = std::make_unique<SinkIterator>();
    }
    sink_->Drop(iterator.get());
    Sent();
  }
  EXPECT_GT(shares, 20);
}

}  // namespace
}  // namespace hvdata
