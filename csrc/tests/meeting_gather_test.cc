// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "meeting_exchange_jobs.h"
#include "tests/texts.h"

namespace hvdata {
namespace {

const std::string kA = std::string("\0G", 2) + "a";  // gather 'a'
const std::string kUnnamed = std::string("\0G\0", 3);

TEST(GatherTest, TheRootGetsAllPartsWhoeverComesFirst) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Jobs jobs(3, seed);
    std::vector<int> order{0, 1, 2, 0, 1, 2};
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (int t : order) {
      jobs.Gather(t, kA, 1);
      for (unsigned some = seed % 5; some > 0; --some) jobs.DeliverOne();
    }
    jobs.DeliverAll();
    // The root may check the parts of the second call before the first one has ended on all ranks.
    for (int t : {0, 2}) EXPECT_EQ(jobs.Got(t), (Lines{"a 0", "a 1"})) << "seed " << seed;
    Lines root = jobs.Got(1);
    std::sort(root.begin(), root.end());
    EXPECT_EQ(root, (Lines{"a 0", "a 1", "parts of 0: 100 101 102", "parts of 1: 100 101 102"})) << "seed " << seed;
  }
}

TEST(GatherTest, WhatDoesNotFitIsAnErrorOfAll) {
  Jobs jobs(3);
  for (int t = 0; t < 3; ++t) jobs.Gather(t, kA, 0, true);
  jobs.DeliverAll();
  EXPECT_EQ(jobs.Got(0), (Lines{"parts of 0: 0 1 2", "3 [rank 0 on node0, gather 'a', call 0] they don't fit"}));
  EXPECT_EQ(jobs.Got(1), (Lines{"3 [rank 1 on node1, gather 'a', call 0] they don't fit"}));
  EXPECT_EQ(jobs.Got(2), (Lines{"3 [rank 2 on node2, gather 'a', call 0] they don't fit"}));
  for (int t = 0; t < 3; ++t) jobs.Gather(t, kA, 0);
  jobs.DeliverAll();
  EXPECT_EQ(jobs.Got(0), (Lines{"parts of 1: 0 1 2", "a 1"})) << "and the next is not disturbed";
}

// The root waits for its part. The others wait for the root.
TEST(GatherTest, ARefusalIsAnErrorOfAll) {
  for (const int who : {0, 2}) {
    for (const bool first : {true, false}) {
      Jobs jobs(3);
      const auto refuse = [&] {
        jobs[who].Refuse(kA, 0, {kInvalidArgument, "it is a scalar"});
        jobs.DeliverAll();
      };
      if (first) refuse();
      for (int t = 0; t < 3; ++t) {
        if (t != who) jobs.Gather(t, kA, 0);
      }
      jobs.DeliverAll();
      if (!first) refuse();
      const std::string rank = std::to_string(who);
      for (int t = 0; t < 3; ++t) {
        const std::string why = "3 [rank " + rank + " on node" + rank + ", gather 'a', call 0] it is a scalar";
        EXPECT_EQ(jobs.Got(t), t == who ? Lines() : Lines{why});
      }
      for (int t = 0; t < 3; ++t) jobs.Gather(t, kA, 0);
      jobs.DeliverAll();
      EXPECT_EQ(jobs.Got(1), (Lines{"a 1"})) << "and the next is not disturbed";
    }
  }
}

// The gradient of a scatter is a gather, and the other way round. Each belongs to one call.
TEST(GatherTest, GradientsAreMatchedByTheirCalls) {
  const auto of = [](const std::string& name, int call) {
    return std::string("\0B", 2) + name + " " + std::to_string(call);
  };
  Jobs jobs(2, 0, 0.05, 60);
  jobs.Gather(0, of("a", 6), 0), jobs.Gather(0, of("a", 5), 0), jobs.Gather(0, of("a", 5), 0);
  jobs.Gather(1, of("a", 5), 0), jobs.Gather(1, of("a", 6), 0), jobs.Gather(1, of("a", 5), 0);
  jobs.DeliverAll();
  EXPECT_EQ(jobs.Got(1), (Lines{"a 5 0", "a 6 0", "a 5 1"}));
  jobs.Scatter(0, of(kA, 3), 0);
  jobs.Gather(1, of(of(kA, 3), 0), 0);
  EXPECT_EQ(LinesOf([&] { jobs.TickAll(); }),
            "horovod_data: [rank 0 on node0, gradient of gather 'a', call 3] has waited 0 s for rank 1 on node1, which "
            "has not made this call\n"
            "horovod_data: [rank 1 on node1, gradient of gradient of gather 'a', call 3, call 0] has waited 0 s for "
            "rank 0 on node0, which has not got all parts\n");
}

TEST(GatherTest, AScatterOfTheSameNameIsAnother) {
  Jobs jobs(2);
  jobs.Scatter(0, "a", 0);
  jobs.Gather(1, kA, 0);
  jobs.Gather(0, kA, 0);
  jobs.Scatter(1, "a", 0);
  jobs.DeliverAll();
  Lines got = jobs.Got(1);
  std::sort(got.begin(), got.end());
  EXPECT_EQ(got, (Lines{"a 0", "a 0 #1"}));
}

TEST(GatherTest, OneWhoHasLeftIsNamedButWhatItGaveCounts) {
  Jobs jobs(3);
  jobs.Gather(1, kUnnamed, 2);
  jobs.DeliverAll();
  jobs.Leave(1);
  jobs.DeliverAll();
  jobs.Gather(0, kUnnamed, 2);
  jobs.Gather(2, kUnnamed, 2);
  jobs.DeliverAll();
  const std::string unnamed(1, '\0');
  EXPECT_EQ(jobs.Got(2), (Lines{"parts of 0: 200 201 202", unnamed + " 0"}));
  jobs.Gather(0, kUnnamed, 2);
  jobs.Gather(2, kUnnamed, 2);
  jobs.DeliverAll();
  const std::string why =
      "rank 1 on node1 has shut down and takes no part in this gather. Every rank must make the same gather calls";
  EXPECT_EQ(jobs.Got(2), (Lines{"14 [rank 2 on node2, gather, call 1] " + why}));
  EXPECT_EQ(jobs.Got(0), (Lines{unnamed + " 0", "14 [rank 0 on node0, gather, call 1] " + why}));
}

}  // namespace
}  // namespace hvdata
