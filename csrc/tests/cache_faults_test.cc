// SPDX-License-Identifier: Apache-2.0
// Jobs with cache="job" whose load or epochs don't go as planned: errors, a full store, and ranks that leave early.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "cache_job.h"
#include "texts.h"

namespace hvdata {
namespace {

CacheJob::Options Faulty(plan::Batch batch = plan::Batch::kGlobal) {
  CacheJob::Options options;
  options.members = {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}, {"c", 0, 0, -1, 3}};
  options.elements.rows = {std::vector<int64_t>(12, 8)};
  options.batch = batch;
  return options;
}

class CacheFaults : public testing::TestWithParam<plan::Batch> {};

TEST_P(CacheFaults, AnErrorOfThePipelineIsOneOfEveryEpoch) {
  for (const uint64_t at : {0, 9}) {
    for (const bool shuffle : {true, false}) {
      CacheJob::Options options = Faulty(GetParam());
      options.elements.fails_at = at;
      options.shuffle = shuffle;
      CacheJob job(options);
      const uint64_t steps = GetParam() == plan::Batch::kGlobal ? at : at / 4;  // before the error
      for (uint64_t number = 1; number <= 3; ++number) {
        const auto all = RunEpoch(&job);
        for (size_t t = 0; t < all.size(); ++t) {
          EXPECT_EQ(all[t]->shares, OracleOf(job, number, 0, shuffle && number > 1 ? 0 : steps)[t]);
          EXPECT_EQ(all[t]->outcome.code, kDataLoss);
          EXPECT_EQ(all[t]->outcome.Text(), "[reader 0 on a, channel train (load), epoch 1, step " +
                                                std::to_string(at) + "] the pipeline has failed");
        }
      }
      EXPECT_EQ(job.pulled(), at);
      const Keeper::Account account = job.keeper(0).Read();
      EXPECT_EQ(account.bytes > 0, at > 0 && !shuffle) << "rows that no epoch can have";
      EXPECT_EQ(account.freed > 0, at > 0 && shuffle);
    }
  }
}

// The load fails when the second epoch has begun. In the first one, the keepers were ahead of the ranks.
TEST_P(CacheFaults, TheLoadMayFailBehindALeftEpoch) {
  std::promise<void> fail;
  CacheJob::Options options = Faulty(GetParam());
  options.shuffle = false;
  options.elements.fails_at = 9;
  options.elements.WaitBefore(9, &fail);
  CacheJob job(options);
  const bool global = GetParam() == plan::Batch::kGlobal;
  RunEpoch(&job, global ? 8 : 1);
  std::thread fails([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    fail.set_value();
  });
  const auto all = RunEpoch(&job);
  for (size_t t = 0; t < all.size(); ++t) {
    EXPECT_EQ(all[t]->shares, OracleOf(job, 2, 0, global ? 9 : 2)[t]);
    EXPECT_EQ(all[t]->outcome.message, "the pipeline has failed") << all[t]->outcome.Text();
  }
  fails.join();
}

TEST_P(CacheFaults, RanksMayLeaveTheFirstEpoch) {
  for (const bool all : {false, true}) {
    CacheJob job(Faulty(GetParam()));
    OnThreads(4, [&](int t) {
      CacheIteration mine(&job, t);
      mine.Take(all || t == 2 ? 1 : ~0ull);
      if (all || t == 2) return;
      EXPECT_EQ(mine.shares, OracleOf(job, 1)[t]);
    });
    ExpectEpoch(&job, 2);
    EXPECT_EQ(job.pulled(), 12u);
  }
}

// One rank departs, and the others get the error, also in the next epoch.
TEST_P(CacheFaults, ARankMayDepartAsTheLoadFails) {
  const size_t steps = GetParam() == plan::Batch::kGlobal ? 9 : 2;  // before the error
  for (unsigned random = 0; random < 6; ++random) {
    const int departs = static_cast<int>(random % 4);
    std::promise<void> fail;
    CacheJob::Options options = Faulty(GetParam());
    options.random = random;
    options.elements.fails_at = 9;
    options.elements.WaitBefore(9, &fail);
    CacheJob job(options);
    OnThreads(4, [&](int t) {
      CacheIteration mine(&job, t);
      mine.Take(t == departs ? 1 : steps);
      if (t == departs) return fail.set_value(), job.Depart(t);
      mine.Take();
      EXPECT_EQ(mine.shares, OracleOf(job, 1, 0, steps)[t]);
      EXPECT_EQ(mine.outcome.message, "the pipeline has failed") << mine.outcome.Text();
    });
    const auto all = RunEpoch(&job);
    for (int t = 0; t < 4; ++t) {
      if (t == departs) continue;
      EXPECT_EQ(all[t]->outcome.message, "the pipeline has failed") << all[t]->outcome.Text();
    }
    EXPECT_EQ(job.pulled(), 9u);
  }
}

// In each epoch another rank leaves early.
TEST_P(CacheFaults, ARankMayLeaveEachEpoch) {
  CacheJob job(Faulty(GetParam()));
  for (uint64_t number = 1; number <= 20; ++number) {
    OnThreads(4, [&](int t) {
      CacheIteration mine(&job, t);
      const uint64_t most = t == static_cast<int>(number % 4) ? 1 + number % 3 : ~0ull;
      mine.Take(most);
      EXPECT_EQ(mine.shares, OracleOf(job, number, 0, most)[t]) << "epoch " << number << ", rank " << t;
    });
  }
  EXPECT_EQ(job.pulled(), 12u);
}

TEST_P(CacheFaults, AFullStoreIsAnErrorOfEveryEpoch) {
  CacheJob::Options options = Faulty(GetParam());
  options.cache_bytes = 3000;
  CacheJob job(options);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const auto& of_rank : RunEpoch(&job)) {
      EXPECT_EQ(of_rank->outcome.code, kResourceExhausted);
      EXPECT_HAS(of_rank->outcome.Text(), "the cache of this host is full");
      EXPECT_HAS(of_rank->outcome.Text(), "[keeper ");
      EXPECT_HAS(of_rank->outcome.Text(), "Raise HOROVOD_DATA_CACHE_GB");
      EXPECT_TRUE(epoch == 0 || of_rank->shares.empty());
    }
  }
}

TEST_P(CacheFaults, WhatDoesNotFitLiesInAFolder) {
  CacheJob::Options options = Faulty(GetParam());
  options.cache_bytes = 3000;
  options.cache_folder = "/tmp";
  CacheJob job(options);
  for (uint64_t number = 1; number <= 2; ++number) ExpectEpoch(&job, number);
}

INSTANTIATE_TEST_SUITE_P(Batches, CacheFaults, testing::Values(plan::Batch::kGlobal, plan::Batch::kPerRank));

TEST(CacheLoad, ShuffledRowsNeedOneShape) {
  CacheJob::Options options = Faulty();
  options.elements.odd_element = 5;
  CacheJob job(options);
  for (const auto& of_rank : RunEpoch(&job)) {
    EXPECT_EQ(of_rank->shares.size(), 5u);
    EXPECT_EQ(
        of_rank->outcome.message,
        "shuffle=True joins rows of different elements, so all need one shape, but the rows of ids have shape [2] "
        "in the first element and [3] in element 5. Make it a ragged tensor, pad it, or use batch=\"per_rank\" or "
        "shuffle=False");
  }
}

TEST(CacheLoad, InLoadOrderRowsMayDiffer) {
  CacheJob::Options options = Faulty();
  options.elements.odd_element = 5;
  options.shuffle = false;
  CacheJob job(options);
  for (uint64_t number = 1; number <= 2; ++number) ExpectEpoch(&job, number);
}

// The second epoch waits for the rest of the load, and says so.
TEST(CacheLoad, AWaitingRankLearnsHowMuchIsLoaded) {
  std::promise<void> go_on;
  CacheJob::Options options = Faulty();
  options.elements.WaitBefore(6, &go_on);
  options.stall = 0.3;
  CacheJob job(options);
  RunEpoch(&job, 1);
  CaptureLines();
  std::thread epoch([&] { ExpectEpoch(&job, 2); });
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  go_on.set_value();
  epoch.join();
  const std::string lines = CapturedLines();
  EXPECT_HAS(lines, "waits for step 0: cache: 6 steps, 0.0 MiB loaded; next comes the share of reader 0 on a");
}

}  // namespace
}  // namespace hvdata
