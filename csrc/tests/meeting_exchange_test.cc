// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "meeting/exchange.h"
#include "meeting_exchange_jobs.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

// "[rank 1 on node1, scatter 'a', call 0] "
std::string In(int trainer, const std::string& name, int call = 0) {
  const std::string rank = std::to_string(trainer);
  return "[rank " + rank + " on node" + rank + ", scatter '" + name + "', call " + std::to_string(call) + "] ";
}
const std::string kLog = "horovod_data: ";
const std::string kSame = "Every rank must make the same scatter calls";
const std::string kLimit = ". " + kSame + "; the limit is HOROVOD_DATA_TIMEOUT (seconds; 0: never)";

TEST(ExchangeTest, EachGetsItsPartWhoeverComesFirst) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Jobs jobs(3, seed);
    std::vector<int> order{0, 1, 2, 0, 1, 2};
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (int t : order) {
      jobs.Scatter(t, "a", 1);
      if (seed % 2) jobs.DeliverAll();
    }
    jobs.DeliverAll();
    for (int t = 0; t < 3; ++t) {
      const std::string part = " #" + std::to_string(100 + t);
      EXPECT_EQ(jobs.Got(t), (Lines{"a 0" + part, "a 1" + part}));
    }
  }
}

// Parts, a BYE, and the reader's LEFT are under way at the same time. Only the order between two ranks is kept.
TEST(ExchangeTest, ACallerThatLeavesWithItsAnswerLeavesNobodyWaiting) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Jobs jobs(4, seed);
    jobs.hasty = true;
    std::vector<int> order{0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    const bool disagree = seed % 3 == 0;
    for (int t : order) {
      jobs.Scatter(t, "a", disagree && t == 2 ? 2 : 1);
      for (unsigned some = seed % 5; some > 0; --some) jobs.DeliverOne();
      if (seed % 2) jobs.DeliverAll();
    }
    for (unsigned some = seed % 11; some > 0; --some) jobs.DeliverOne();
    jobs.Tick();  // all ask who has left
    jobs.DeliverAll();
    for (int t = 0; t < 4; ++t) {
      const Lines got = jobs.Got(t);
      ASSERT_EQ(got.size(), 1u) << "seed " << seed << " trainer " << t;
      if (disagree) {
        EXPECT_HAS(got[0], "the ranks disagree") << "seed " << seed << ": " << got[0];
      } else {
        EXPECT_EQ(got[0], "a 0 #" + std::to_string(100 + t)) << "seed " << seed << ": nobody was missing";
      }
    }
  }
}

TEST(ExchangeTest, RanksThatDisagreeAboutTheRootAllFail) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    const int n = 2 + static_cast<int>(seed % 4);
    std::mt19937 random(seed);
    std::vector<int> roots;
    do {
      roots.clear();
      for (int t = 0; t < n; ++t) roots.push_back(static_cast<int>(random() % static_cast<unsigned>(n)));
    } while (std::set<int>(roots.begin(), roots.end()).size() < 2);
    std::vector<int> order;
    for (int t = 0; t < n; ++t) order.push_back(t);
    std::shuffle(order.begin(), order.end(), random);
    Jobs jobs(n, seed);
    const bool gather = seed % 3 == 0;
    const std::string what = gather ? "gather" : "scatter", name = gather ? std::string("\0G", 2) + "a" : "a";
    const auto call = [&](int t, int root) { gather ? jobs.Gather(t, name, root) : jobs.Scatter(t, name, root); };
    for (int t : order) {
      call(t, roots[static_cast<size_t>(t)]);
      if (seed % 2) jobs.DeliverAll();
    }
    jobs.DeliverAll();
    for (int t = 0; t < n; ++t) {
      const Lines got = jobs.Got(t);
      ASSERT_EQ(got.size(), 1u) << "seed " << seed << " trainer " << t;
      EXPECT_HAS(got[0], "3 [rank " + std::to_string(t));
      EXPECT_HAS(got[0], "the ranks disagree in " + what + "(): root=");
      EXPECT_HAS(got[0], "the same " + what + " calls, with the same root");
      int named = 0;  // two ranks and their roots
      for (int of = 0; of < n; ++of) {
        const std::string root = "root=" + std::to_string(roots[static_cast<size_t>(of)]);
        named += got[0].find(root + " on rank " + std::to_string(of) + " on ") != std::string::npos ? 1 : 0;
      }
      EXPECT_EQ(named, 2) << got[0];
    }
    for (int t = 0; t < n; ++t) call(t, 0);  // the next one is not disturbed
    jobs.DeliverAll();
    for (int t = 0; t < n; ++t) EXPECT_EQ(jobs.Got(t).back(), gather ? "a 1" : "a 1 #" + std::to_string(t));
  }
}

TEST(ExchangeTest, OneWhoHasLeftIsNamedButWhatItSentCounts) {
  for (const int root : {0, 1}) {
    Jobs jobs(3);
    for (int t = 0; t < 3; ++t) jobs.Scatter(t, "a", root);
    if (root == 1) jobs.DeliverAll(1);  // it has sent all parts, and nobody has one yet but itself
    jobs.Leave(1);
    jobs.TickAll();
    for (int t = 0; t < 3; ++t) {
      const Lines got = jobs.Got(t);
      if (root == 0 && t == 1) continue;  // it has left before its part came
      EXPECT_EQ(got, (Lines{"a 0 #" + std::to_string(100 * root + t)}));
    }
    for (int t : {0, 2}) jobs.Scatter(t, "a", 0);
    jobs.TickAll();
    for (int t : {0, 2}) {
      EXPECT_EQ(jobs.Got(t), (Lines{"14 " + In(t, "a", 1) +
                                    "rank 1 on node1 has shut down and takes no part in this scatter. " + kSame}));
    }
  }
}

TEST(ExchangeTest, OneWhoHasCalledAndLeftIsNotMissing) {
  Jobs jobs(3);
  for (int t : {0, 1}) jobs.Scatter(t, "a", 0);
  jobs.Leave(1);
  jobs.TickAll();
  EXPECT_EQ(jobs.Got(0), Lines()) << "rank 2 is still to come";
  jobs.Scatter(2, "a", 0);
  jobs.DeliverAll();
  for (int t : {0, 2}) EXPECT_EQ(jobs.Got(t), (Lines{"a 0 #" + std::to_string(t)}));
}

// It has sent nothing to the other ranks: they learn from the reader that it has departed.
TEST(ExchangeTest, OneThatNeverTookPartEndsTheOthersWaitsInASecond) {
  for (const int root : {1, 2}) {
    Jobs jobs(3);
    for (int t : {1, 2}) jobs.Scatter(t, "a", root);
    jobs.TickAll();  // nobody has left so far
    EXPECT_EQ(jobs.Got(1).size() + jobs.Got(2).size(), 0u);
    jobs.Leave(0);
    Lines got[3];
    int ticks = 0;  // each 110 ms, at least
    while ((got[1].empty() || got[2].empty()) && ticks < 50) {
      ++ticks;
      jobs.TickAll();
      for (int t : {1, 2}) {
        for (const std::string& one : jobs.Got(t)) got[t].push_back(one);
      }
    }
    EXPECT_LE(ticks, 9);
    for (int t : {1, 2}) {
      EXPECT_EQ(got[t], (Lines{"14 " + In(t, "a") +
                               "rank 0 on node0 has shut down and takes no part in this scatter. " + kSame}));
    }
  }
}

// Lines speak of the audit, because the program has not made its scatters.
TEST(ExchangeTest, AuditsAreNamedInPlaceOfTheirScatters) {
  const std::string name = std::string("\0A", 2) + "audit 1";
  Jobs jobs(2, 0, 0.05, 10);
  jobs.Scatter(0, name, 0);
  jobs.Scatter(1, "b", 0);
  jobs.DeliverAll();
  CaptureLines();
  jobs.TickAll();
  EXPECT_EQ(
      AnySeconds(CapturedLines()),
      "horovod_data: [rank 0 on node0, audit 1] has waited N s for rank 1 on node1, which has not come as far\n"
      "horovod_data: [rank 1 on node1, scatter 'b', call 0] has waited N s for rank 0 on node0, which has not sent "
      "its part\n");
  jobs.Leave(1);
  jobs.TickAll();
  EXPECT_EQ(
      jobs.Got(0),
      (Lines{"14 [rank 0 on node0, audit 1] rank 1 on node1 has shut down and takes no part in this audit. All ranks "
             "must make the same calls of audit(), and the same number of iterations over what it returns"}));
}

// A root that has made both calls waits for a third rank, and so does a rank that waits for its part. A refusal waits
// for no rank.
TEST(ExchangeTest, CallsThatOnlyWaitForAThirdRankDoNotCross) {
  Jobs jobs(3, 0, 0.05, 10);
  jobs.Scatter(0, "a", 0);
  jobs.Scatter(0, "b", 0);
  jobs.Scatter(1, "a", 0);
  jobs[2].Refuse("c", 2, {kInvalidArgument, "no"});
  jobs.DeliverAll();
  EXPECT_EQ(AnySeconds(LinesOf([&] { jobs.TickAll(); })),
            kLog + In(0, "a") + "has waited N s for rank 2 on node2, which has not made this call\n" +  //
                kLog + In(0, "b") +
                "has waited N s for rank 1 on node1, rank 2 on node2, which has not made this call\n" +  //
                kLog + In(1, "a") + "has waited N s for rank 0 on node0, which has not sent its part\n");
}

TEST(ExchangeTest, ARefusalReachesAllOthers) {
  Jobs jobs(3);
  jobs.Scatter(1, "a", 0);
  jobs[0].Refuse("a", 0, {kInvalidArgument, "no rows"});
  jobs.DeliverAll();
  jobs.Scatter(2, "a", 0);
  jobs.DeliverAll();
  for (int t : {1, 2}) EXPECT_EQ(jobs.Got(t), (Lines{"3 " + In(0, "a") + "no rows"})) << "the place of the root";
}

// Rank 1 has a wrong root, which counts as root 0. The others take rank 1 for the root.
TEST(ExchangeTest, ARefusalOfTheRankThatTheOthersTakeForTheRootEndsTheirCalls) {
  const std::string gather("\0Ga", 3);
  for (const std::string& name : {std::string("a"), gather}) {
    Jobs jobs(3);
    const auto call = [&](int t) { name == gather ? jobs.Gather(t, name, 1) : jobs.Scatter(t, name, 1); };
    call(0);
    jobs[1].Refuse(name, 0, {kInvalidArgument, "no such root"});
    jobs.DeliverAll();
    call(2);
    jobs.DeliverAll();
    for (int t : {0, 2}) {
      const Lines got = jobs.Got(t);
      ASSERT_EQ(got.size(), 1u) << "rank " << t;
      EXPECT_HAS(got[0], name == gather ? "3 [rank 1 on node1, gather 'a', call 0] no such root"
                                        : "the ranks disagree in scatter(): root=");
    }
  }
}

TEST(ExchangeTest, ARefusalOfARankThatOnlyTakesEndsNoOthersCall) {
  Jobs jobs(2);
  jobs.Scatter(0, "a", 0);
  jobs[1].Refuse("a", 0, {kInvalidArgument, "no dtype"});
  jobs.Scatter(1, "a", 0);
  jobs.DeliverAll();
  EXPECT_EQ(jobs.Got(0), (Lines{"a 0 #0"}));
  jobs.Scatter(0, "a", 0);
  jobs.DeliverAll();
  EXPECT_EQ(jobs.Got(1), (Lines{"a 1 #1"}));
}

TEST(ExchangeTest, AFailureEndsEveryWaitNowAndLater) {
  Jobs jobs(2);
  jobs.Scatter(0, "a", 1);
  jobs.Scatter(0, "b", 1);
  jobs[0].Fail({kUnavailable, "shut down"});
  jobs[0].Fail({kInternal, "later"});
  jobs.Scatter(0, "a", 1);
  const std::string first = "14 " + In(0, "a") + "shut down";
  EXPECT_EQ(jobs.Got(0), (Lines{first, "14 " + In(0, "b") + "shut down", "14 " + In(0, "a", 1) + "shut down"}));
}

// The root gives up first. Rank 1 has called later than the root, so its own limit is far away. Rank 2 calls after
// that.
TEST(ExchangeTest, WhoeverIsMissingIsReportedAndThenGivenUp) {
  Jobs jobs(3, 0, 0.05, 3);
  jobs.Scatter(0, "a", 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  jobs.Scatter(1, "a", 0);
  jobs.DeliverAll();
  CaptureLines();
  jobs[0].Tick();
  jobs.TickAll();
  const std::string missing = "for rank 2 on node2, which has not made this call";
  EXPECT_EQ(AnySeconds(CapturedLines()), kLog + In(0, "a") + "has waited N s " + missing + "\n" +  //
                                             kLog + In(1, "a") +
                                             "has waited N s for rank 0 on node0, which has not sent its part\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(1700));
  jobs[0].Tick();
  jobs.DeliverAll();
  EXPECT_EQ(jobs.Got(0), (Lines{"4 " + In(0, "a") + "has waited N s " + missing + kLimit}));
  jobs.Scatter(2, "a", 0);
  jobs.DeliverAll();
  for (const int t : {1, 2}) {
    EXPECT_EQ(jobs.Got(t),
              (Lines{"4 " + In(t, "a") + "rank 0 on node0, the root, has given this call up: it has waited N s " +
                     missing + kLimit}));
  }
}

// Where the root does not speak, each rank gives up by itself.
TEST(ExchangeTest, ARankGivesUpARootThatSaysNothing) {
  Jobs jobs(2, 0, 0, 0.2);
  jobs.Scatter(1, "a", 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(210));
  jobs.TickAll();
  EXPECT_EQ(jobs.Got(1),
            (Lines{"4 " + In(1, "a") + "has waited N s for rank 0 on node0, which has not sent its part" + kLimit}));
}

}  // namespace
}  // namespace hvdata
