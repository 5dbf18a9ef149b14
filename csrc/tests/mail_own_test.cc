// SPDX-License-Identifier: Apache-2.0
// Messages of a process to itself, and the choice of the thread that delivers.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <thread>

#include "tests/mail_post_fixture.h"

namespace hvdata {
namespace {

using wire::Header;

// A job of one process, which reads and trains.
class OwnPostTest : public testing::Test {
 protected:
  static constexpr uint32_t kChannel = 5;
  using Numbers = std::vector<uint64_t>;

  void SetUp() override {
    const std::vector<Member> members = {{"a", 0, 0, 0, 0}};
    world_ = World::Of(0, members);
    Post::Ways ways;
    ways.send_by_mpi = [](int, Packet) { FAIL() << "there is nobody else"; };
    ways.make_destination = DestinationFor;
    ways.deliver = [this](int member, Header header, BundlePtr bundle) {
      EXPECT_EQ(member, 0);
      EXPECT_FALSE(HoldsLocks());
      EXPECT_FALSE(delivering_.exchange(true)) << "one call at a time";
      const wire::Save save = std::get<wire::Save>(header.message);
      if (on_deliver_) on_deliver_(header.epoch, static_cast<uint64_t>(save.request));
      {
        const MutexLock lock(&mu_);
        got_.push_back(static_cast<uint64_t>(save.request));
        bundles_.push_back(std::move(bundle));
      }
      delivering_ = false;
    };
    ways.broken = [this](const std::string& what) { broken_ += what + "\n"; };
    post_ =
        std::make_unique<Post>(&world_, std::move(Connect(members, Payload::kAuto, 1 << 20).front()), std::move(ways));
  }
  void Send(uint64_t number, uint64_t sender = 0, const Share* share = nullptr) {
    post_->Send(0, MakeHeader(kChannel, sender, wire::Save{static_cast<int64_t>(number)}), share);
  }
  Numbers Got() {
    const MutexLock lock(&mu_);
    return std::exchange(got_, {});
  }

  World world_;
  std::unique_ptr<Post> post_;
  std::function<void(uint64_t sender, uint64_t number)> on_deliver_;
  std::atomic<bool> delivering_{false};
  Mutex mu_;
  Numbers got_;                     // under mu_
  std::vector<BundlePtr> bundles_;  // under mu_
  std::string broken_;
};

TEST_F(OwnPostTest, SendDeliversNothingAndFetchAllOfItInOrder) {
  EXPECT_FALSE(post_->Fetch());
  Share share;
  share.bundle = std::make_shared<int>(7);
  {
    const MutexLock lock(&mu_);  // the handler locks it, too
    for (uint64_t number = 1; number <= 3; ++number) Send(number, 0, &share);
  }
  EXPECT_EQ(Got(), Numbers());
  EXPECT_TRUE(post_->Fetch());
  EXPECT_EQ(Got(), (Numbers{1, 2, 3}));
  EXPECT_EQ(bundles_.front(), share.bundle) << "the tensors change hands as they are";
  EXPECT_FALSE(post_->Fetch());
}

TEST_F(OwnPostTest, WhatAHandlerSendsIsDeliveredBehindItByTheSameFetch) {
  on_deliver_ = [this](uint64_t, uint64_t number) {
    if (number >= 100) return;
    Send(number * 100 + 1);
    Send(number * 100 + 2);
    EXPECT_FALSE(post_->Fetch()) << "a handler's own Fetch leaves it to the one at work";
  };
  Send(1);
  Send(2);
  EXPECT_TRUE(post_->Fetch());
  EXPECT_EQ(Got(), (Numbers{1, 2, 101, 102, 201, 202}));
}

TEST_F(OwnPostTest, ACallInTurnIsBetweenTwoDeliveries) {
  Numbers order;
  on_deliver_ = [&](uint64_t, uint64_t number) {
    if (number == 1) {
      post_->InTurn([&] {
        EXPECT_FALSE(delivering_) << "inside a delivery";
        EXPECT_FALSE(HoldsLocks());
        order.push_back(100);
      });
    }
    order.push_back(number);
  };
  Send(1);
  Send(2);
  post_->Fetch();
  EXPECT_EQ(order, (Numbers{1, 2, 100}));
  post_->InTurn([&] { order.push_back(200); });
  EXPECT_EQ(order.back(), 200u) << "at once, when nothing is being delivered";
}

TEST_F(OwnPostTest, ManyThreadsSendAndFetchAndNothingIsLost) {
  constexpr uint64_t kThreads = 4, kEach = 5000;
  std::vector<uint64_t> last(kThreads, 0);  // by sender; whoever delivers
  uint64_t all = 0;
  on_deliver_ = [&](uint64_t sender, uint64_t number) {
    EXPECT_EQ(number, last[sender] + 1) << "out of order";
    last[sender] = number;
    ++all;
  };
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t number = 1; number <= kEach; ++number) {
        Send(number, t);
        post_->Fetch();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(all, kThreads * kEach) << "a Fetch that leaves it to another one must be heard by that one";
  EXPECT_FALSE(post_->Fetch());
}

TEST_F(OwnPostTest, FetchAllReturnsWhenWhatCameBeforeIsDelivered) {
  std::promise<void> inside, go_on;
  on_deliver_ = [&](uint64_t, uint64_t number) {
    if (number > 1) return;
    inside.set_value();
    go_on.get_future().wait();
  };
  Send(1);
  std::thread slow([&] { post_->Fetch(); });
  inside.get_future().wait();
  Send(2);
  EXPECT_FALSE(post_->Fetch()) << "another one is about it";
  std::future<size_t> all = std::async(std::launch::async, [&] {
    post_->FetchAll();
    return Got().size();
  });
  EXPECT_EQ(all.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  go_on.set_value();
  EXPECT_EQ(all.get(), 2u);
  slow.join();
}

TEST_F(OwnPostTest, TheOwnTrainersTakenWakesItsReaderOnlyWhenThatWaitsForIt) {
  const Doorbell source = post_->Door(true, kChannel), sink = post_->Door(false, kChannel);
  const auto rings = [&](const Doorbell& door, wire::Message message) {
    const uint32_t before = door.bell->rung;
    post_->Send(0, MakeHeader(kChannel, 1, std::move(message)));
    return door.bell->rung - before;
  };
  const auto taken = [&](uint64_t limit) { return rings(source, wire::Taken{LaneStep(limit), LaneStep(limit)}); };
  EXPECT_EQ(taken(1), 1u) << "by default everybody wakes it";
  source.attend(0, LaneStep(5));
  EXPECT_EQ(taken(4), 0u);
  EXPECT_EQ(taken(5), 1u);
  source.attend(1, LaneStep(1));
  EXPECT_EQ(taken(9), 0u) << "it waits for another trainer";
  EXPECT_EQ(rings(source, wire::Close()), 1u) << "any other word wakes it";
  EXPECT_EQ(rings(sink, wire::Data()), 1u);
  EXPECT_EQ(rings(source, wire::Data()), 0u) << "that is for the trainer";
  source.attend(Doorbell::kEverybody, LaneStep(0));
  EXPECT_EQ(taken(1), 1u);
}

TEST_F(OwnPostTest, AHandlerWithoutMemoryBreaksThePostAndBlocksNobody) {
  on_deliver_ = [&](uint64_t, uint64_t number) {
    if (number != 2) return;
    delivering_ = false;
    throw std::bad_alloc();
  };
  for (uint64_t number = 1; number <= 2; ++number) Send(number);
  post_->Fetch();
  EXPECT_EQ(broken_.rfind("a message can't be delivered: this process can have no more memory", 0), 0u) << broken_;
  std::future<void> all = std::async(std::launch::async, [&] { post_->FetchAll(); });
  ASSERT_EQ(all.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody's turn would ever come";
  Send(2);
  Send(3);
  post_->Fetch();
  EXPECT_EQ(std::count(broken_.begin(), broken_.end(), '\n'), 1) << "it is said once: " << broken_;
}

// ---- Errors and races.

// A message in a ring that can't be delivered for lack of memory.
TEST_F(PostTest, AHandlerWithoutMemoryBreaksARingToo) {
  Start(Payload::kAuto);
  on_deliver_ = [](int, const Header&) { throw std::bad_alloc(); };
  Send(0, Make(1, {10}));
  std::future<void> fetched = std::async(std::launch::async, [&] {
    parties_[1].post->Fetch();
    parties_[1].post->FetchAll();
  });
  ASSERT_EQ(fetched.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const MutexLock lock(&parties_[1].mu);
  EXPECT_EQ(parties_[1].broken.rfind("a message can't be delivered: this process can have no more memory", 0), 0u)
      << parties_[1].broken;
}

// The delivering thread has looked at the rings, and another thread leaves a later message there to it.
TEST_F(PostTest, ARecordThatComesDuringADeliveryIsNotLeftBehind) {
  Start(Payload::kAuto);
  Post& post = *parties_[1].post;
  post.InTurn([&] {
    Send(0, Make(1, {10}));
    std::thread([&] { EXPECT_FALSE(post.Fetch()); }).join();
  });
  const MutexLock lock(&parties_[1].mu);
  EXPECT_EQ(parties_[1].got.size(), 1u);
}

TEST_F(PostTest, AByeOvertakesNeitherARingNorAnExchange) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Start(Payload::kAuto, 1 << 20, seed);
    Hold(1, true);
    const Sums before = Sums::Now();
    size_t sent = 0;
    while (Sums::Now().Since(before).full < 3) {  // by MPI, beside a full ring
      Send(0, Make(++sent, {10000}));
      if (sent % 8) continue;
      Packet part = Make(++sent, {sent % 16 ? 100 : size_t{50000}});
      part.header.channel = 0;
      part.header.message = wire::Scatter{"a", sent, 0};
      Send(0, std::move(part));
    }
    const size_t flying = InFlightTo(1);
    parties_[0].post->Send(1, MakeHeader(0, 0, wire::Bye{{1}, ""}));
    EXPECT_EQ(InFlightTo(1), flying + 1) << "BYE goes by MPI";
    Hold(1, false);
    std::vector<Got> got;
    while (got.size() < sent + 1 && !HasFailure()) {
      for (Got& one : Take(1, 1)) got.push_back(std::move(one));
    }
    ASSERT_EQ(got.size(), sent + 1);
    EXPECT_STREQ(got.back().header.name(), "BYE") << "seed " << seed;
    EXPECT_EQ(std::get<wire::Bye>(got.back().header.message).told, std::vector<int32_t>{1});
    Stop();
  }
}

}  // namespace
}  // namespace hvdata
