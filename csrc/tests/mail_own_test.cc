// SPDX-License-Identifier: Apache-2.0
// Messages of a process to itself, and the choice of the thread that delivers.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>
#include <thread>

#include "tests/mail_post_fixture.h"
#include "tests/on_threads.h"

namespace hvdata {
namespace {

using wire::Header;

class OwnPostTest : public PostTest {
 protected:
  using List = std::vector<uint64_t>;

  void SetUp() override { Start(); }
  void Send(uint64_t number) { PostTest::Send(0, 0, Make(number)); }
  // Calls on_number(number) for each message in the delivery.
  void OnNumber(std::function<void(uint64_t)> on_number) {
    on_deliver_ = [on_number = std::move(on_number)](int, int, const Header& header) { on_number(Number(header)); };
  }
};

TEST_F(OwnPostTest, SendDeliversNothingAndFetchAllOfItInOrder) {
  EXPECT_FALSE(post(0).Fetch());
  Share share;
  share.bundle = std::make_shared<int>(7);
  {
    const MutexLock lock(&party(0).mu);  // the handler locks it, too
    for (uint64_t number = 1; number <= 3; ++number) post(0).Send(0, Make(number).header, &share);
    EXPECT_TRUE(party(0).got.empty());
  }
  EXPECT_TRUE(post(0).Fetch());
  EXPECT_EQ(party(0).got.at(0).blocks, share.bundle) << "the tensors change hands as they are";
  EXPECT_EQ(Numbers(0), (List{1, 2, 3}));
  EXPECT_FALSE(post(0).Fetch());
}

TEST_F(OwnPostTest, WhatAHandlerSendsIsDeliveredBehindItByTheSameFetch) {
  OnNumber([this](uint64_t number) {
    if (number >= 100) return;
    Send(number * 100 + 1);
    Send(number * 100 + 2);
    EXPECT_FALSE(post(0).Fetch()) << "a handler's own Fetch leaves it to the one at work";
  });
  Send(1);
  Send(2);
  EXPECT_TRUE(post(0).Fetch());
  EXPECT_EQ(Numbers(0), (List{1, 2, 101, 102, 201, 202}));
}

TEST_F(OwnPostTest, ACallInTurnIsBetweenTwoDeliveries) {
  List order;
  OnNumber([&](uint64_t number) {
    if (number == 1) {
      post(0).InTurn([&] {
        EXPECT_FALSE(party(0).delivering) << "inside a delivery";
        EXPECT_FALSE(HoldsLocks());
        order.push_back(100);
      });
    }
    order.push_back(number);
  });
  Send(1);
  Send(2);
  post(0).Fetch();
  EXPECT_EQ(order, (List{1, 2, 100}));
  post(0).InTurn([&] { order.push_back(200); });
  EXPECT_EQ(order.back(), 200u) << "at once, when nothing is being delivered";
}

TEST_F(OwnPostTest, ManyThreadsSendAndFetchAndNothingIsLost) {
  constexpr uint64_t kThreads = 4, kEach = 5000;
  std::vector<uint64_t> last(kThreads, 0);  // by sender; whoever delivers
  uint64_t all = 0;
  OnNumber([&](uint64_t number) {
    EXPECT_EQ(number / kThreads, last[number % kThreads] + 1) << "out of order";
    last[number % kThreads] = number / kThreads;
    ++all;
  });
  OnThreads(kThreads, [&](int t) {
    for (uint64_t number = 1; number <= kEach; ++number) {
      Send(number * kThreads + static_cast<uint64_t>(t));
      post(0).Fetch();
    }
  });
  EXPECT_EQ(all, kThreads * kEach) << "a Fetch that leaves it to another one must be heard by that one";
  EXPECT_FALSE(post(0).Fetch());
}

TEST_F(OwnPostTest, FetchAllReturnsWhenWhatCameBeforeIsDelivered) {
  std::promise<void> inside, go_on;
  OnNumber([&](uint64_t number) {
    if (number > 1) return;
    inside.set_value();
    go_on.get_future().wait();
  });
  Send(1);
  std::thread slow([&] { post(0).Fetch(); });
  inside.get_future().wait();
  Send(2);
  EXPECT_FALSE(post(0).Fetch()) << "another one is about it";
  std::future<size_t> all = std::async(std::launch::async, [&] {
    post(0).FetchAll();
    return Came(0).size();
  });
  EXPECT_EQ(all.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  go_on.set_value();
  EXPECT_EQ(all.get(), 2u);
  slow.join();
}

// ---- Errors and races.

TEST_F(PostTest, AHandlerWithoutMemoryBreaksThePostAndBlocksNobody) {
  on_deliver_ = [](int, int, const Header&) { throw std::bad_alloc(); };
  for (const int to : {0, 1}) {  // in the queue, and in a ring
    Start();
    for (uint64_t number = 1; number <= 2; ++number) {
      Send(0, to, Make(number));
      std::future<void> all = std::async(std::launch::async, [&] {
        post(to).Fetch();
        post(to).FetchAll();
      });
      ASSERT_EQ(all.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "nobody's turn would ever come";
    }
    const std::string said = Broken(to);
    EXPECT_EQ(said.rfind("a message can't be delivered: this process can have no more memory", 0), 0u) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << "it is said once: " << said;
  }
}

TEST_F(OwnPostTest, ALostMessageIsNotDeliveredLater) {
  List tried;
  OnNumber([&](uint64_t number) {
    tried.push_back(number);
    if (number == 1) throw std::bad_alloc();
  });
  Send(1);
  Send(2);
  post(0).Fetch();
  Send(3);
  post(0).Fetch();
  EXPECT_EQ(tried, (List{1, 3}));
}

// The delivering thread has looked at the rings, and another thread leaves a later message there to it.
TEST_F(PostTest, ARecordThatComesDuringADeliveryIsNotLeftBehind) {
  Start();
  post(1).InTurn([&] {
    Send(0, 1, Make(1, {10}));
    std::thread([&] { EXPECT_FALSE(post(1).Fetch()); }).join();
  });
  EXPECT_EQ(Came(1).size(), 1u);
}

TEST_F(PostTest, AByeOvertakesNeitherARingNorAnExchange) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Start(Payload::kAuto, 1 << 20, seed);
    Hold(1, true);
    const Sums before = Sums::Now();
    size_t sent = 0;
    while (Sums::Now().Since(before).full < 3) {  // by MPI, beside a full ring
      Send(0, 1, Make(++sent, {10000}));
      if (sent % 8) continue;
      Packet part = Make(++sent, {sent % 16 ? 100 : size_t{50000}});
      part.header.channel = 0;
      part.header.message = wire::Scatter{"a", sent, 0};
      Send(0, 1, std::move(part));
    }
    const size_t flying = InFlightTo(1);
    post(0).Send(1, MakeHeader(0, 0, wire::Bye{{1}, ""}));
    EXPECT_EQ(InFlightTo(1), flying + 1) << "BYE goes by MPI";
    Hold(1, false);
    std::vector<Got> got;
    while (got.size() < sent + 1 && !HasFailure()) {
      for (Got& one : Take(1, 1)) got.push_back(std::move(one));
    }
    ASSERT_EQ(got.size(), sent + 1);
    EXPECT_STREQ(got.back().header.name(), "BYE") << "seed " << seed;
    EXPECT_EQ(std::get<wire::Bye>(got.back().header.message).sent_to, std::vector<int32_t>{1});
  }
}

}  // namespace
}  // namespace hvdata
