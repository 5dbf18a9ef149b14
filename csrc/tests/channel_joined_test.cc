// SPDX-License-Identifier: Apache-2.0
// A trainer of a kept channel: each step has a share of every keeper.
#include "channel_sink_fixture.h"

namespace hvdata {
namespace {

// Three hosts: a reader alone, and two with two trainers each. So members 0, 1 and 3 are keepers.
World HostsOfThree(int self) {
  return World::Of(
      self, {{"a", 0, 0, 0, -1}, {"b", 0, 0, -1, 0}, {"b", 0, 0, -1, 1}, {"c", 0, 0, -1, 2}, {"c", 0, 0, -1, 3}});
}

class JoinedSinkTest : public SinkTest {
 protected:
  // Rank 1, which is no keeper.
  void MakeJoined(bool verify = false) {
    ChannelConfig config;
    config.view = View::kKept;
    config.batch = plan::Batch::kPerRank;
    config.prefetch = 2;
    config.verify = verify;
    SinkTest::Make(std::move(config), HostsOfThree(2).As(View::kKept));
  }
  void Share(int keeper, uint64_t step) {
    wire::Data data = DataAt(step, step + 1, step);
    data.rows = static_cast<uint64_t>(keeper);
    data.cost = 10;
    sink_->Handle(keeper, MakeHeader(7, 1, std::move(data)), std::make_shared<Token>(Token{step, keeper}));
  }
  void ShareOfAll(uint64_t step) {
    for (const int keeper : {2, 0, 1}) Share(keeper, step);
  }
};

TEST(WorldOfKeepersTest, EachHostHasOneAndTheHostOfReaderZeroComesFirst) {
  const World job = HostsOfThree(2);
  EXPECT_EQ(job.keepers, (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(job.KeeperOfRank(), (std::vector<int>{1, 1, 2, 2}));
  EXPECT_EQ(World::Of(0, {{"a", 0, 0, -1, 0}, {"b", 0, 0, 1, 1}, {"b", 0, 0, 0, 2}}).keepers, (std::vector<int>{2, 0}))
      << "a host's first reader, by its number among readers";
}

TEST(WorldOfKeepersTest, RolesAndNames) {
  const World job = HostsOfThree(1), load = job.As(View::kLoad), kept = job.As(View::kKept);
  EXPECT_EQ(load.sources, (std::vector<int>{0}));
  EXPECT_EQ(load.group_trainers, (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(kept.sources, (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(kept.group_trainers, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(load.Name(1), "keeper 1 on b");
  EXPECT_EQ(load.ReaderName(0), "reader 0 on a");
  EXPECT_EQ(kept.ReaderName(2), "keeper 2 on c");
  EXPECT_EQ(kept.Name(1), "rank 0 on b");
  EXPECT_EQ(kept.Name(0), "keeper 0 on a");
  EXPECT_EQ(load.KeeperOfRank(), job.KeeperOfRank());
  EXPECT_EQ(kept.KeeperOfRank(), job.KeeperOfRank());
}

TEST_F(JoinedSinkTest, AStepHasTheShareOfEveryKeeper) {
  MakeJoined();
  const Outcome first = NextBeside(&iterator_, [&] {
    EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r1 OPEN e1 0,2", "r2 OPEN e1 0,2"})) << "the whole window for each";
    for (const uint64_t step : {0, 1}) Share(2, step), Share(0, step);
    EXPECT_EQ(sink_->Awaited(iterator_), "keeper 1 on b");
    Share(1, 0);
  });
  ASSERT_TRUE(first.ok()) << first.message;
  EXPECT_EQ(iterator_.taken.n, 1u);
  ASSERT_EQ(arrival_.more.size(), 2u);
  EXPECT_EQ(TokenOf(arrival_.bundle).element, 0u);
  for (int keeper = 1; keeper < 3; ++keeper) {
    const Arrival& one = arrival_.more[static_cast<size_t>(keeper) - 1];
    EXPECT_EQ(one.reader, keeper);
    EXPECT_EQ(TokenOf(one.bundle).element, 0u);
  }
  EXPECT_EQ(arrival_.cost, 30) << "of all keepers' rows";
  EXPECT_EQ(sink_->tally().rows, 3u);
  EXPECT_EQ(sink_->tally().steps, 1u);
  EXPECT_EQ(Sent(), (Lines{"r0 TAKEN e1 1,3", "r1 TAKEN e1 1,3", "r2 TAKEN e1 1,3"}));
}

TEST_F(JoinedSinkTest, TheEpochEndsWhenAllKeepersHaveEndedIt) {
  MakeJoined();
  const Outcome ended = NextBeside(&iterator_, [&] {
    for (const int keeper : {0, 1, 2}) Say(keeper, 1, EndAt(0));
  });
  EXPECT_TRUE(ended.ok()) << ended.message;
  EXPECT_TRUE(end_);
  EXPECT_EQ(Sent(), (Lines{"r0 OPEN e1 0,2", "r1 OPEN e1 0,2", "r2 OPEN e1 0,2", "r0 CLOSE e1 0,0", "r1 CLOSE e1 0,0",
                           "r2 CLOSE e1 0,0"}));
}

TEST_F(JoinedSinkTest, TheErrorOfOneKeeperComesBehindTheStepsBeforeIt) {
  MakeJoined();
  const Outcome first = NextBeside(&iterator_, [&] {
    wire::End end = EndAt(1);
    end.outcome = {kResourceExhausted, "the memory of this host is full"};
    Say(1, 1, std::move(end));
    ShareOfAll(0);
  });
  ASSERT_TRUE(first.ok()) << first.message;
  const Outcome second = Next(&iterator_);
  EXPECT_EQ(second.code, kResourceExhausted) << "without a wait for the others' shares";
  EXPECT_EQ(second.message, "the memory of this host is full");
}

TEST_F(JoinedSinkTest, KeepersThatEndAtDifferentStepsAreFound) {
  MakeJoined();
  const Outcome outcome = NextBeside(&iterator_, [&] {
    Say(0, 1, EndAt(0));
    for (const int keeper : {1, 2}) Share(keeper, 0);
  });
  EXPECT_EQ(outcome.code, kInternal);
  EXPECT_EQ(outcome.message, "the keepers have ended the epoch at different steps");
}

// The time limit is for a load that stands still.
TEST_F(JoinedSinkTest, ALoadThatGoesOnIsAwaitedBeyondTheTimeLimit) {
  ChannelConfig config;
  config.view = View::kKept;
  SinkTest::Make(std::move(config), HostsOfThree(2).As(View::kKept), 0.2, 0.4);
  uint64_t asked = 0, told = 0;
  on_sent_ = [&](const Header& h) {
    if (!Is<wire::Why>(h)) return;
    if (++asked <= 4) told = asked;
    Say(0, h.epoch, wire::Because{"cache: " + std::to_string(told) + " steps loaded", told});
  };
  const auto begun = std::chrono::steady_clock::now();
  const Outcome outcome = Next(&iterator_);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begun;
  EXPECT_EQ(outcome.code, kDeadlineExceeded);
  EXPECT_HAS(outcome.message, "cache: 4 steps loaded");
  EXPECT_GT(asked, 4u);
  EXPECT_GT(waited.count(), 0.45) << "its limit has begun anew";
}

TEST_F(JoinedSinkTest, EachShareOfAVerifiedStepIsAcknowledgedByItself) {
  MakeJoined(true);
  const Outcome first = NextBeside(&iterator_, [&] { ShareOfAll(0); });
  ASSERT_TRUE(first.ok()) << first.message;
  (void)Sent();
  proof::ShareHash hash;
  hash.data.rows = 1;
  EXPECT_TRUE(sink_->Confirm(iterator_, arrival_.more[0], hash).ok());
  EXPECT_EQ(Sent(), (Lines{"r1 TAKEN e1 1,3"}));
  sink_->HandedOut(iterator_);
  EXPECT_EQ(Sent(), (Lines{"r0 TAKEN e1 1,3", "r2 TAKEN e1 1,3"}));
}

// Rank 0 may restore a checkpoint alone, while the other ranks already ask for elements.
TEST(JoinedSource, EveryKeeperWaitsForTheRankOfReaderZero) {
  const World world =
      World::Of(1, {{"a", 0, 0, 0, 0}, {"b", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}}).As(View::kKept);  // rank 1 is a keeper
  ChannelConfig config;
  config.number = 7;
  config.view = View::kKept;
  Source source(config, &world, 60, [](int, wire::Header, const Share*) {});
  uint64_t number = 0;
  const auto open = [&](int member) { source.Handle(member, MakeHeader(7, 1, wire::Open{LaneStep(2)})); };
  const auto next = [&] { return source.WaitEpoch(std::chrono::milliseconds(0), &number); };
  for (const int member : {1, 2}) open(member);
  EXPECT_EQ(next(), 0) << "rank 0 has not opened the epoch";
  open(0);
  EXPECT_EQ(next(), 1);
}

TEST_F(JoinedSinkTest, AStateOfOtherKeepersIsRestored) {
  MakeJoined();
  on_sent_ = [this](const Header& h) {
    if (const auto* restore = std::get_if<wire::Restore>(&h.message)) {
      EXPECT_EQ(restore->position.n, 5u);
      EXPECT_EQ(restore->state, "words");
      for (const int keeper : {0, 1, 2}) Say(keeper, 1, wire::State{restore->request, {}});
    }
  };
  SinkState state;
  state.kind = SinkState::kRunning;
  state.epoch = state.number = 3;
  state.trainers = 3;
  state.lanes.assign(1, {Position(5), Turn(5), "words"});
  const Outcome restored = sink_->Restore(&iterator_, state);
  ASSERT_TRUE(restored.ok()) << restored.message;
  EXPECT_EQ(Sent().size(), 3u) << "every keeper gets it";
}

}  // namespace
}  // namespace hvdata
