// SPDX-License-Identifier: Apache-2.0
// A Source under test, the test as its dealer and as all trainers, and everything that it sends, as text.
#ifndef HOROVOD_DATA_TESTS_CHANNEL_SOURCE_FIXTURE_H_
#define HOROVOD_DATA_TESTS_CHANNEL_SOURCE_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "channel/source.h"
#include "channel_job.h"

namespace hvdata {

using wire::Header;
using wire::Kind;

// A reader, by default of 2 trainers, one call at a time.
class SourceTest : public testing::Test {
 protected:
  void SetUp() override { Make(plan::Schedule::kStatic); }
  // The last of `readers` readers.
  void Make(plan::Schedule schedule, int readers = 1) {
    ChannelConfig config;
    config.schedule = schedule;
    Make(std::move(config), MakeWorld(readers - 1, 2, readers, true));
  }
  void Make(ChannelConfig config, World world) {
    world_ = std::move(world);
    config.name = "train";
    config.batch = plan::Batch::kPerRank;
    source_ = std::make_unique<Source>(config, &world_, stall_seconds_, [this](int member, Header h, const Share* share) {
      EXPECT_EQ(share != nullptr, h.kind == Kind::kData);
      const Member& to = world_.members[static_cast<size_t>(member)];
      sent_.push_back((to.trains() ? std::to_string(to.trainer) : "r" + std::to_string(to.reader)) + " " +
                      wire::KindName(h.kind) + " e" + std::to_string(h.epoch) + " " +
                      std::to_string(h.step) + "," + std::to_string(h.a) + "," + std::to_string(h.b) +
                      (h.text.empty() ? "" : " " + h.text));
    });
  }
  Texts Sent() { return std::exchange(sent_, {}); }
  int64_t NextEpoch() { return source_->WaitEpoch(std::chrono::milliseconds(0)); }
  void Begin(uint64_t epoch) {
    ASSERT_EQ(NextEpoch(), static_cast<int64_t>(epoch));
    EXPECT_TRUE(source_->Begin(epoch, nullptr).empty());
    source_->Start({});
  }
  void Deal(int shares = 2) {
    ASSERT_EQ(source_->Await(), Source::Wish::kElement);
    source_->Deal(MakeStep(source_->Steps(), shares));
  }

  double stall_seconds_ = 60;
  World world_;
  Texts sent_;
  std::unique_ptr<Source> source_;
};

}  // namespace hvdata

#endif  // HOROVOD_DATA_TESTS_CHANNEL_SOURCE_FIXTURE_H_
