// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "channel_job.h"
#include "meeting/agreements.h"
#include "texts.h"

namespace hvdata {
namespace {

using wire::Header;

// Members 0 (the coordinator, a dedicated reader), 1 and 2, and a network whose messages the test delivers.
class AgreementsTest : public testing::Test {
 protected:
  void Make(double stall, double timeout) {
    for (int m = 0; m < 3; ++m) {
      worlds_.push_back(MakeWorld(m, 2, 1, true));
    }
    for (int m = 0; m < 3; ++m) {
      const auto send = [this, m](int to, Header h, const Share*) { network_.push_back({m, to, std::move(h)}); };
      members_.push_back(std::make_unique<Agreements>(&worlds_[static_cast<size_t>(m)], stall, timeout, send));
    }
  }
  Agreements& At(int m) { return *members_[static_cast<size_t>(m)]; }
  void Deliver() {
    while (!network_.empty()) {
      const Item item = network_.front();
      network_.pop_front();
      Dispatch(item.to, item.from, item.header);
    }
  }
  std::optional<Outcome> Result(int m, int64_t number) {
    Deliver();
    return At(m).Wait(number, std::chrono::milliseconds(0));
  }

 private:
  struct Item {
    int from, to;
    Header header;
  };
  void Dispatch(int to, int from, const Header& h) {
    if (const auto* hello = std::get_if<wire::Hello>(&h.message)) return At(to).On(from, *hello);
    At(to).On(from, std::get<wire::Verdict>(h.message));
  }
  std::vector<World> worlds_;
  std::vector<std::unique_ptr<Agreements>> members_;
  std::deque<Item> network_;
};

TEST_F(AgreementsTest, EqualContributionsAreJoined) {
  Make(10, 10);
  for (int m : {2, 0, 1}) EXPECT_EQ(At(m).Begin("same", "distribute_dataset"), 1);
  for (int m = 0; m < 3; ++m) {
    const auto result = Result(m, 1);
    ASSERT_TRUE(result && result->ok());
    EXPECT_EQ(result->message, "0 1 2 \tsame\n");
    EXPECT_FALSE(Result(m, 1)) << "a result is handed out once";
  }
}

TEST_F(AgreementsTest, DifferentContributionsStandInOrderOfTheirFirstMember) {
  Make(10, 10);
  At(1).Begin("b", "");
  At(2).Begin("", "what");
  EXPECT_FALSE(Result(1, 1));
  At(0).Begin("", "what");
  EXPECT_EQ(Result(1, 1)->message, "0 2 \t\n1 \tb\n");
}

TEST_F(AgreementsTest, SeveralAtATimeAreMatchedByNumber) {
  Make(10, 10);
  EXPECT_EQ(At(1).Begin("x", ""), 1);
  EXPECT_EQ(At(1).Begin("y", ""), 2);
  for (int m : {0, 2}) {
    At(m).Begin("x", "");
    At(m).Begin("y", "");
  }
  EXPECT_EQ(Result(1, 2)->message, "0 1 2 \ty\n");
  EXPECT_EQ(Result(1, 1)->message, "0 1 2 \tx\n");
}

TEST_F(AgreementsTest, AMissingMemberIsNamedAndThenGivenUp) {
  Make(0.05, 3);
  CaptureLines();
  At(1).Begin("x", "distribute_dataset 'train'");
  Deliver();
  At(0).Tick();
  EXPECT_FALSE(Result(1, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  for (int i = 0; i < 3; ++i) At(0).Tick();
  Deliver();
  EXPECT_EQ(
      AnySeconds(CapturedLines()),
      "horovod_data: [reader 0 on host0] rank 0 on node0 has waited N s in distribute_dataset 'train' for reader 0 "
      "on host0, rank 1 on node1, which has not made this call\n");
  std::this_thread::sleep_for(std::chrono::seconds(3));
  At(0).Tick();
  auto result = Result(1, 1);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->code, kDeadlineExceeded);
  EXPECT_EQ(result->message.find("distribute_dataset 'train': rank 0 on node0 waited for reader 0 on host0, rank 1 on "
                                 "node1, which has not made this call within"),
            0u);
  At(2).Begin("x", "too late");
  result = Result(2, 1);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->code, kDeadlineExceeded) << "the late one learns the same";
  At(1).Begin("z", "");
  At(2).Begin("z", "");
  At(0).Begin("late as well", "");
  EXPECT_EQ(Result(0, 1)->code, kDeadlineExceeded);
  At(0).Begin("z", "");
  EXPECT_TRUE(Result(2, 2)->ok()) << "the next agreement is sound";
}

TEST_F(AgreementsTest, ACoordinatorThatDoesNotAnswerIsNamedAndThenGivenUp) {
  Make(0.05, 2);
  At(1).Begin("x", "distribute_dataset 'train'");
  CaptureLines();
  std::optional<Outcome> result;
  for (int i = 0; i < 1000 && !result; ++i)
    result = At(1).Wait(1, std::chrono::milliseconds(20));  // nothing is delivered
  EXPECT_EQ(AnySeconds(CapturedLines()),
            "horovod_data: [rank 0 on node0] has waited N s in distribute_dataset 'train' for reader 0 on host0, which "
            "brings all ranks together and reports which ones are missing\n");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->code, kDeadlineExceeded);
  EXPECT_EQ(AnySeconds(result->message)
                .find("distribute_dataset 'train': has waited N s for reader 0 on host0, which brings"),
            0u)
      << result->message;
}

TEST_F(AgreementsTest, OneWhoHasShutDownIsNamed) {
  Make(10, 10);
  At(1).Begin("x", "distribute_dataset");
  At(2).Begin("x", "distribute_dataset");
  Deliver();
  At(0).OnDeparted(1);  // it has contributed to the first
  EXPECT_FALSE(Result(1, 1));
  At(0).Begin("x", "distribute_dataset");
  EXPECT_TRUE(Result(2, 1)->ok());
  At(2).Begin("y", "distribute_dataset");
  const auto result = Result(2, 2);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->code, kUnavailable);
  EXPECT_EQ(result->message,
            "distribute_dataset: rank 0 on node0 has shut down and will not take part. Every rank "
            "must make the same calls in the same order");
}

TEST_F(AgreementsTest, ARefusalAnswersWhoWaitsAndWhoComes) {
  Make(10, 10);
  At(1).Begin("x", "distribute_dataset(name='late')");
  Deliver();
  At(0).Refuse("it serves");
  EXPECT_EQ(Result(1, 1)->code, kFailedPrecondition);
  At(2).Begin("x", "distribute_dataset(name='late')");
  EXPECT_EQ(Result(2, 1)->message, "distribute_dataset(name='late'): it serves");
  At(2).Begin("y", "scatter");
  EXPECT_EQ(Result(2, 2)->message, "scatter: it serves");
}

TEST_F(AgreementsTest, AFailureEndsTheWait) {
  Make(10, 10);
  At(1).Begin("x", "");
  std::thread failing([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    At(1).Fail({kUnavailable, "shut down"});
  });
  EXPECT_EQ(At(1).Wait(1, std::chrono::seconds(10))->message, "shut down");
  failing.join();
}

TEST(JoinNames, BeyondEight) {
  EXPECT_EQ(JoinNames({}), "");
  EXPECT_EQ(JoinNames({"a", "b"}), "a, b");
  EXPECT_EQ(JoinNames(std::vector<std::string>(8, "a")), "a, a, a, a, a, a, a, a");
  EXPECT_EQ(JoinNames(std::vector<std::string>(11, "a")), "a, a, a, a, a, a, a, a and 3 more");
}

}  // namespace
}  // namespace hvdata
