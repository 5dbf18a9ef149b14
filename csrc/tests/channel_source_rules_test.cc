// SPDX-License-Identifier: Apache-2.0
// Rules that hold for a source, whatever messages come in whatever order.
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "channel_source_fixture.h"
#include "wire_samples.h"

namespace hvdata {
namespace {

TEST_F(SourceTest, AReaderThatTrainsBeginsWithItsOwnRank) {
  ChannelConfig config;
  Make(config, MakeWorld(0, 2, 1, false));
  source_->OnOpen(1, 1, 2);
  EXPECT_EQ(NextEpoch(), 0) << "rank 0's program may still set what the pipeline reads";
  source_->OnOpen(0, 1, 2);
  EXPECT_EQ(NextEpoch(), 1);
  Make(config, MakeWorld(0, 2, 1, false));
  source_->OnOpen(1, 1, 2);
  EXPECT_EQ(NextEpoch(), 0);
  source_->Depart(0);
  EXPECT_EQ(NextEpoch(), 1) << "it comes no more";
  config.schedule = plan::Schedule::kDynamic;
  Make(config, MakeWorld(0, 2, 1, false));
  source_->OnOpen(1, 1, 2);
  EXPECT_EQ(NextEpoch(), 1) << "nobody waits for anybody";
}

TEST_F(SourceTest, AnEpochThatCouldNotBeginAnswersSaves) {
  std::mutex mu;
  Lines sent;
  ChannelConfig config;
  config.name = "train";
  PlainSource source(config, &world_, 60, [&](int member, Header h, const Share*) {
    std::lock_guard<std::mutex> lock(mu);
    sent.push_back(std::to_string(world_.members[static_cast<size_t>(member)].trainer) + " " + TextOf(h));
  });
  const auto heard = [&](const std::string& text) {
    for (int i = 0; i < 1000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::lock_guard<std::mutex> lock(mu);
      for (const std::string& one : sent) {
        if (one == text) return true;
      }
    }
    return false;
  };
  for (int t = 0; t < 2; ++t) source.OnOpen(t, 1, 2);
  std::thread dealer([&] { source.FailEpoch(1, {kInternal, "no input"}); });
  EXPECT_TRUE(heard("1 END e1 0,13,0 [reader 0 on host0, channel train, epoch 1, step 0] no input"));
  source.OnSave(1, 1, 5);
  EXPECT_TRUE(heard("1 STATE e1 0,5,13 [reader 0 on host0, channel train, epoch 1, step 0] no input"));
  for (int t = 0; t < 2; ++t) source.OnClose(t, 1, 0);
  dealer.join();
}

TEST_F(SourceTest, ASaveOfOneEpochIsNotAnsweredInAnother) {
  source_->OnOpen(0, 1, 1);
  source_->OnClose(0, 1, 0);
  source_->OnOpen(0, 2, 1);
  source_->OnSave(0, 2, 7);  // another reader is there already; here epoch 1 has not begun
  source_->OnOpen(1, 1, 1);
  Begin(1);
  EXPECT_EQ(source_->Await(), Task::kPull) << "not a save of this epoch";
  source_->OnSave(1, 1, 8);
  source_->OnClose(1, 1, 0);
  EXPECT_EQ(source_->Await(), Task::kStop);
  source_->End();
  EXPECT_EQ(Sent(), (Lines{"1 STATE e1 0,8,0"})) << "what the end overtook is answered";
  Begin(2);
  ASSERT_EQ(source_->Await(), Task::kSave);
  const auto requests = source_->TakeSaveRequests();
  ASSERT_EQ(requests.size(), 1u) << "the other one has gone with its epoch";
  EXPECT_EQ(requests[0].request, 7);
  EXPECT_EQ(requests[0].epoch, 2u);
}

// Any message of any kind with any numbers, from any trainer, in any state.
class Babel : public testing::TestWithParam<unsigned> {};

TEST_P(Babel, NothingThatIsSaidBringsTheReaderDown) {
  const unsigned seed = GetParam();
  std::mt19937_64 random(seed);
  const bool grouped = seed % 4 == 3;
  const bool dedicated = seed % 8 < 4;
  const World world = grouped ? MakeWorld(dedicated ? 1 : 2, 4, 2, dedicated, true)
                              : MakeWorld(0, 2, 1 + static_cast<int>(seed % 2), dedicated);
  ASSERT_TRUE(world.me().reads());
  ChannelConfig config;
  config.name = "train";
  config.batch = plan::Batch::kPerRank;
  config.elements = 20;
  config.on_error_continue = seed % 3 == 0;
  config.schedule = seed % 4 == 2 ? plan::Schedule::kDynamic : plan::Schedule::kStatic;
  std::atomic<uint64_t> messages{0}, epoch_now{0};
  PlainSource source(config, &world, 60, [&](int, Header, const Share*) { ++messages; });
  std::thread dealer([&] {
    std::mt19937_64 mine(seed + 1000);
    const int shares = config.schedule == plan::Schedule::kDynamic ? 0 : world.group_trainer_count();
    uint64_t number = 0;
    for (int64_t next = 0; (next = source.WaitEpoch(std::chrono::milliseconds(10), &number)) >= 0;) {
      if (next == 0) continue;
      epoch_now = static_cast<uint64_t>(next);
      const auto answer = [&] {
        for (const SaveRequest& request : source.TakeSaveRequests()) source.AnswerSave(request, {}, "state");
        source.Epoch()->UntakenElements();
      };
      if (mine() % 8 == 0) {
        source.FailEpoch(static_cast<uint64_t>(next), {kInternal, "no input"});
        continue;
      }
      const std::map<int, wire::Restore> handed = source.Begin(static_cast<uint64_t>(next), [] {});
      std::vector<uint64_t> positions;
      uint64_t turn = 0;
      if (!handed.empty())
        positions.assign(static_cast<size_t>(world.group_trainer_count()), handed.begin()->second.position.n);
      for (const auto& [trainer, restore] : handed) {
        positions[static_cast<size_t>(trainer)] = restore.position.n;
        turn = restore.turn.n;
      }
      source.Start(positions, turn);
      const uint64_t most = mine() % 20;
      for (Task task; (task = source.Await()) != Task::kStop;) {
        if (task == Task::kSave) {
          answer();
        } else if (source.Steps() < most) {
          source.Deal(MakeStep(source.Steps(), shares));
        } else {
          source.Epoch()->Dropped(1, 1);
          if (mine() % 2)
            source.Epoch()->Finish({kInternal, "broken"}, true);
          else
            source.Epoch()->Finish({});
          break;
        }
      }
      while (source.Linger() == Task::kSave) answer();
      source.End();
    }
  });
  const wire::Filler filler{wire::Filler::kRandom, &random, 300, 24};
  for (int step = 0; step < 2500; ++step) {
    const auto below = [&](uint64_t n) { return random() % n; };
    uint64_t epoch = epoch_now + below(3);
    if (below(4) == 0 && epoch > 0) --epoch;
    if (below(500) == 0) epoch = filler.Any();
    wire::Message message = wire::Filled(below(wire::kKinds), filler);
    // So that not all trainers release the channel at once.
    if (std::holds_alternative<wire::Release>(message) && below(20) > 0) message = wire::Open{LaneStep(below(24))};
    source.Handle(static_cast<int>(below(world.members.size())), MakeHeader(0, epoch, std::move(message)));
    if (step % 16 == 0) std::this_thread::yield();
  }
  source.Shut();
  dealer.join();
  EXPECT_GT(messages, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Babel, testing::Range(0u, 8u));

}  // namespace
}  // namespace hvdata
