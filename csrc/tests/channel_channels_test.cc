// SPDX-License-Identifier: Apache-2.0
// Messages for a channel before it is made or after it is gone, and the records of channels that are gone.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel/channels.h"
#include "channel/reader_epoch.h"
#include "channel_job.h"

namespace hvdata {
namespace {

// A dedicated reader, member 0, of two trainers; its channels' numbers are 1, 2, ...
class ChannelsTest : public testing::Test {
 protected:
  std::shared_ptr<Source> Add(uint32_t number, const std::string& name = "train") {
    ChannelConfig config;
    config.number = number;
    config.name = name;
    config.batch = plan::Batch::kPerRank;
    Channel channel;
    channel.source = std::make_shared<Source>(config, &world_, 60, [](int, wire::Header, const Share*) {});
    std::shared_ptr<Source> source = channel.source;
    channels_.Add(config, std::move(channel));
    return source;
  }
  void Come(uint32_t number, int trainer, wire::Message message) {
    channels_.Deliver(world_.group_trainers[static_cast<size_t>(trainer)], MakeHeader(number, 1, std::move(message)),
                      nullptr);
  }
  void Restores(uint32_t number, int trainer) {
    Come(number, trainer, wire::Restore{1, 1, 1, Position(4), Turn(2), TailStep(), "words"});
  }
  static int64_t NextEpoch(Source* source) {
    uint64_t number = 0;
    return source->WaitEpoch(std::chrono::milliseconds(0), &number);
  }

  const World world_ = MakeWorld(0, 2, 1, true);
  Channels channels_;
};

// The channel exists, but DeliverEarly, which waits for its turn, has not been called yet.
TEST_F(ChannelsTest, ALiveOpenDoesNotOvertakeAKeptRestore) {
  Restores(1, 0);
  const std::shared_ptr<Source> source = Add(1);
  for (const int trainer : {0, 1}) Come(1, trainer, wire::Open{LaneStep(2)});
  ASSERT_EQ(NextEpoch(source.get()), 1);
  const auto restores = source->Begin(1, nullptr);
  ASSERT_EQ(restores.size(), 1u) << "the epoch began without what its trainer had restored";
  EXPECT_EQ(restores.at(0).state, "words");
  channels_.DeliverEarly(1);
  EXPECT_EQ(NextEpoch(source.get()), 0);
}

TEST_F(ChannelsTest, WhatCameEarlyIsDeliveredInItsOrder) {
  Restores(2, 1);
  for (const int trainer : {1, 0}) Come(2, trainer, wire::Open{LaneStep(2)});
  const std::shared_ptr<Source> first = Add(1), second = Add(2, "valid");
  EXPECT_EQ(NextEpoch(second.get()), 0);
  channels_.DeliverEarly(1);
  channels_.DeliverEarly(2);
  EXPECT_EQ(NextEpoch(first.get()), 0) << "it was for the other channel";
  ASSERT_EQ(NextEpoch(second.get()), 1);
  EXPECT_EQ(second->Begin(1, nullptr).count(1), 1u);
}

TEST_F(ChannelsTest, WhatComesForOneThatIsGoneIsDropped) {
  Add(1);
  channels_.EndSource(1);
  EXPECT_EQ(channels_.Find(1).source, nullptr);
  EXPECT_TRUE(channels_.All().empty());
  for (const int trainer : {0, 1}) Come(1, trainer, wire::Open{LaneStep(2)});
  // In a job this does not happen, because a number belongs to one channel.
  const std::shared_ptr<Source> source = Add(1);
  channels_.DeliverEarly(1);
  EXPECT_EQ(NextEpoch(source.get()), 0);
}

TEST_F(ChannelsTest, AChannelThatAllHaveLeftEnds) {
  const std::shared_ptr<Source> source = Add(1);
  for (const int member : world_.group_trainers) channels_.OnDeparted(member);
  EXPECT_EQ(NextEpoch(source.get()), -1);
  channels_.OnDeparted(0);  // the reader itself, which is no trainer
}

TEST_F(ChannelsTest, AccountsOutliveTheirChannels) {
  Add(1, "train");
  Add(2, "valid");
  channels_.EndSource(1);
  EXPECT_EQ(channels_.Accounts().size(), 2u);
  EXPECT_TRUE(channels_.Accounts().at("train").reader);
  EXPECT_TRUE(channels_.Accounts(true).at("valid").reader);
  EXPECT_FALSE(channels_.Accounts().at("train").reader) << "times have begun anew, and it is gone";
}

// A slow look must not replace what a later look has found: the last channel of the name would be lost.
TEST_F(ChannelsTest, LooksAtTheSameTimeKeepTheLastAccount) {
  for (uint32_t number = 1; number <= 20; ++number) Add(number, "other " + std::to_string(number));
  std::atomic<bool> over{false};
  std::vector<std::thread> looking;
  for (int i = 0; i < 4; ++i) {
    looking.emplace_back([&] {
      while (!over) (void)channels_.Accounts();
    });
  }
  uint32_t wrong = 0;
  for (uint32_t number = 21; number <= 1500; ++number) {
    Add(number);
    channels_.EndSource(number);
    wrong += channels_.Accounts().at("train").options.number != number;
  }
  over = true;
  for (std::thread& thread : looking) thread.join();
  EXPECT_EQ(wrong, 0u);
}

// The order in which the channels were made decides. It is the same on all processes. The order of their release is
// not.
TEST_F(ChannelsTest, OfChannelsWithoutANameTheLastAreKnown) {
  Add(1, "train");
  for (uint32_t number = 2; number < 102; ++number) {
    Add(number, "channel" + std::to_string(number));
    if (number > 2) channels_.EndSource(number);
  }
  std::map<std::string, Channels::Account> known = channels_.Accounts();
  EXPECT_EQ(known.size(), 17u);
  for (const char* name : {"train", "channel86", "channel101"}) EXPECT_EQ(known.count(name), 1u) << name;
  EXPECT_EQ(known.count("channel2"), 0u) << "though it is there still";
}

TEST(ChannelsOfATrainerTest, TheLastUseLetsTheSinkGo) {
  const World world = MakeWorld(1, 2, 1, true);
  Channels channels;
  ChannelConfig config;
  config.number = 1;
  config.name = "train";
  Channel channel;
  channel.sink = std::make_shared<Sink>(config, &world, 60, 0, [](int, wire::Header, const Share*) {});
  const std::weak_ptr<Sink> sink = channel.sink;
  channels.Add(config, std::move(channel));
  EXPECT_EQ(channels.Use(1), sink.lock());
  EXPECT_EQ(channels.Use(2), nullptr);
  EXPECT_FALSE(channels.Unuse(1));
  EXPECT_TRUE(channels.Unuse(1));
  EXPECT_TRUE(sink.expired());
  EXPECT_FALSE(channels.Unuse(1));
  EXPECT_EQ(channels.Use(1), nullptr);
  EXPECT_TRUE(channels.Accounts().at("train").trainer);
}

}  // namespace
}  // namespace hvdata
