// SPDX-License-Identifier: Apache-2.0
// A Source under test, the test as its dealer and as all trainers, and everything that it sends, as text.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "channel/source.h"
#include "channel_job.h"

namespace hvdata {

using wire::Header;
using Task = Source::Task;

// A Source whose messages are calls.
class PlainSource : public Source {
 public:
  using Source::Source;

  struct Handed {
    std::string state;
    uint64_t position = 0;
    uint64_t epoch = 0, turn = 0;
    uint64_t tail_taken = 0;
    uint64_t number = 0;
  };

  // ---- What trainers say.

  void Hear(int trainer, uint64_t epoch, wire::Message message) {
    Handle(world().group_trainers[static_cast<size_t>(trainer)],
           MakeHeader(config().number, epoch, std::move(message)));
  }
  void OnOpen(int trainer, uint64_t epoch, uint64_t limit) { Hear(trainer, epoch, wire::Open{LaneStep(limit)}); }
  void OnTaken(int trainer, uint64_t epoch, uint64_t taken, uint64_t limit) {
    Hear(trainer, epoch, wire::Taken{LaneStep(taken), LaneStep(limit)});
  }
  void OnRecalled(int trainer, uint64_t epoch, uint64_t taken, uint64_t limit) {
    Hear(trainer, epoch, wire::Recalled{LaneStep(taken), LaneStep(limit)});
  }
  void OnClose(int trainer, uint64_t epoch, uint64_t taken, int64_t dropped = 0) {
    Hear(trainer, epoch, wire::Close{LaneStep(taken), dropped});
  }
  void OnClaim(int trainer, uint64_t epoch, uint64_t step, int64_t element, bool filler) {
    Hear(trainer, epoch, wire::Claim{TailStep(step), static_cast<uint64_t>(element), filler, false});
  }
  void OnSave(int trainer, uint64_t epoch, int64_t request) { Hear(trainer, epoch, wire::Save{request}); }
  void OnRestore(int trainer, uint64_t epoch, Handed h, int64_t request) {
    Hear(
        trainer, epoch,
        wire::Restore{request, h.epoch, h.number, Position(h.position), Turn(h.turn), TailStep(h.tail_taken), h.state});
  }
  void OnWithdraw(int trainer, uint64_t epoch) { Hear(trainer, epoch, wire::Withdraw()); }
  void OnWhy(int trainer, uint64_t epoch, uint64_t step) { Hear(trainer, epoch, wire::Why{EpochStep(step)}); }

  // ---- The dealer.

  std::map<int, wire::Restore> Begin(uint64_t epoch, std::function<void()> cancel) {
    steps_ = 0;
    return Source::Begin(epoch, std::move(cancel));
  }
  void Start(const std::vector<uint64_t>& positions, uint64_t turn = 0, uint64_t tail_taken = 0) {
    plan::Resumption resumption;
    for (const uint64_t position : positions) resumption.positions.emplace_back(position);
    resumption.turn = Turn(turn), resumption.tail_taken = TailStep(tail_taken);
    Source::Start(resumption);
  }
  void Deal(Step step) {
    Source::Deal(std::move(step));
    ++steps_;
  }
  uint64_t Steps() const { return steps_; }

 private:
  uint64_t steps_ = 0;  // that the test has dealt
};

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
    source_ = std::make_unique<PlainSource>(
        config, &world_, stall_seconds_, [this](int member, Header h, const Share* share) {
          EXPECT_EQ(share != nullptr, Is<wire::Data>(h));
          EXPECT_TRUE(HoldsLocks()) << "what is sent is sent in the order in which it was decided upon";
          const Member& to = world_.members[static_cast<size_t>(member)];
          sent_.push_back((to.trains() ? std::to_string(to.trainer) : "r" + std::to_string(to.reader)) + " " +
                          TextOf(h));
        });
  }
  Lines Sent() { return std::exchange(sent_, {}); }
  int64_t NextEpoch() { return source_->WaitEpoch(std::chrono::milliseconds(0), &number_); }
  virtual void Begin(uint64_t epoch) {
    ASSERT_EQ(NextEpoch(), static_cast<int64_t>(epoch));
    EXPECT_TRUE(source_->Begin(epoch, nullptr).empty());
    source_->Start({});
  }
  void OpenAll(uint64_t epoch, uint64_t limit = 2) {
    for (int t = 0; t < world_.group_trainer_count(); ++t) source_->OnOpen(t, epoch, limit);
  }
  void OpenAndBegin(uint64_t epoch, uint64_t limit = 2) {
    OpenAll(epoch, limit);
    Begin(epoch);
  }
  // All trainers have taken so many steps and leave the epoch, which ends.
  void CloseAll(uint64_t epoch, uint64_t taken = 0) {
    for (int t = 0; t < world_.group_trainer_count(); ++t) source_->OnClose(t, epoch, taken);
    EXPECT_EQ(source_->Linger(), Task::kStop);
    source_->End();
  }
  void Deal(int shares = 2) {
    ASSERT_EQ(source_->Await(), Task::kPull);
    source_->Deal(MakeStep(source_->Steps(), shares));
  }

  double stall_seconds_ = 60;
  World world_;
  Lines sent_;
  uint64_t number_ = 0;  // of the epoch that WaitEpoch gave last, over all runs
  std::unique_ptr<PlainSource> source_;
};

}  // namespace hvdata
