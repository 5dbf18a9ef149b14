// SPDX-License-Identifier: Apache-2.0
// An epoch on a trainer, message by message: moments between two messages that threads rarely meet.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "channel/trainer_epoch.h"
#include "channel_job.h"
#include "plain_messages.h"

namespace hvdata {
namespace {

class DynamicTrainerEpochTest : public testing::Test {
 protected:
  void Open(int readers) {
    world_ = MakeWorld(readers + 1, 2, readers, true);
    config_.schedule = plan::Schedule::kDynamic;
    epoch_ = std::make_unique<TrainerEpoch>(
        config_, world_, 1, SinkState(), &window_, [this](int reader, const wire::Message& message) {
          const wire::Header header = MakeHeader(7, 1, message);
          const Plain plain = PlainOf(message);
          told_.push_back("r" + std::to_string(reader) + " " + header.name() + " " + std::to_string(plain.step) + "," +
                          std::to_string(plain.a));
        });
    Told();
  }
  Lines Told() { return std::exchange(told_, {}); }
  void Data(int reader) { epoch_->On(reader, wire::Data(), nullptr); }
  bool Takes() {
    Arrival arrival;
    Outcome outcome;
    return epoch_->Take(&arrival, &outcome) == TrainerEpoch::Next::kShare;
  }

  World world_;
  ChannelConfig config_;
  Window window_{2, 0, true};
  std::unique_ptr<TrainerEpoch> epoch_;
  Lines told_;
};

// verified: without its acknowledgement the other trainers would wait for the end, as long as the program keeps the
// iterator.
TEST_F(DynamicTrainerEpochTest, AShareThatCantBeHashedIsAcknowledgedAllTheSame) {
  config_.verify = true;
  Open(1);
  Data(0);
  EXPECT_TRUE(Takes());
  EXPECT_EQ(Told(), Lines()) << "with its hash";
  epoch_->HandedOut();
  EXPECT_EQ(Told(), (Lines{"r0 TAKEN 1,3"}));
  epoch_->HandedOut();
  EXPECT_EQ(Told(), Lines());
}

// The same with what came on demand, later.
TEST_F(DynamicTrainerEpochTest, WhoGivesUpGivesBackWhatCameOnDemand) {
  Open(2);
  for (int r = 0; r < 2; ++r) epoch_->OnRecall(r);
  Told();
  epoch_->SetWaiting(true);
  EXPECT_EQ(Told(), (Lines{"r0 TAKEN 0,1", "r1 TAKEN 0,1"}));
  Data(1);
  EXPECT_EQ(Told(), Lines()) << "it is waited for";
  epoch_->GiveUp();
  EXPECT_EQ(Told(), (Lines{"r1 RECALLED 0,0"}));
  EXPECT_EQ(epoch_->Queued(), 0u);
  epoch_->SetWaiting(true);
  Data(0);
  EXPECT_TRUE(epoch_->HasNext()) << "the next wait is for any reader";
}

// A newer iterator opens the next epoch in that moment.
TEST_F(DynamicTrainerEpochTest, WhatWasKeptAndNotTakenIsNotCountedAtTheEnd) {
  Open(1);
  epoch_->SetWaiting(true);
  Data(0);
  epoch_->OnRecall(0);
  Told();
  epoch_->Close();
  EXPECT_EQ(Told(), (Lines{"r0 CLOSE 0,0"}));
}

}  // namespace
}  // namespace hvdata
