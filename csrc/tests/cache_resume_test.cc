// SPDX-License-Identifier: Apache-2.0
// Saved epochs of jobs with cache="job" go on in other jobs, also with another number of ranks and hosts.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/kept_state.h"
#include "cache_job.h"
#include "texts.h"

namespace hvdata {
namespace {

std::vector<Member> FourRanks() {
  return {{"a", 0, 0, 0, 0}, {"a", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}, {"c", 0, 0, -1, 3}};
}
std::vector<Member> ThreeRanks() { return {{"a", 0, 0, 0, 0}, {"b", 0, 0, -1, 1}, {"b", 0, 0, -1, 2}}; }

CacheJob::Options Saving(plan::Batch batch) {
  CacheJob::Options options;
  options.members = FourRanks();
  options.elements.rows = {{8, 6, 8, 7, 8, 8, 8, 5, 8, 8, 8, 8}};
  options.batch = batch;
  return options;
}

// Saves each rank's iterator.
std::vector<SinkState> SavedBy(CacheJob* job, const CacheIterations& all) {
  std::vector<SinkState> states(all.size());
  OnThreads(job->trainers(), [&](int t) {
    const Outcome outcome = job->sink(t).Save(&all[t]->iterator, &states[t]);
    EXPECT_TRUE(outcome.ok()) << outcome.Text();
  });
  return states;
}

std::vector<std::vector<Shared>> SharesOf(const CacheIterations& all) {
  std::vector<std::vector<Shared>> shares;
  for (const auto& of_rank : all) shares.push_back(of_rank->shares);
  return shares;
}

// Runs `epochs` epochs, and then `steps` steps of the next one. Returns each rank's state.
std::vector<SinkState> SavedAfter(CacheJob* job, uint64_t epochs, uint64_t steps) {
  for (uint64_t i = 0; i < epochs; ++i) RunEpoch(job);
  return SavedBy(job, RunEpoch(job, steps));
}
std::vector<SinkState> SavedAfter(const CacheJob::Options& options, uint64_t epochs, uint64_t steps) {
  CacheJob job(options);
  return SavedAfter(&job, epochs, steps);
}

// As many states as the job has ranks.
auto RunRestored(CacheJob* job, const std::vector<SinkState>& states, uint64_t most = ~0ull) {
  return RunEpoch(job, most, [&](int t, CacheIteration* mine) {
    const Outcome outcome = job->sink(t).Restore(&mine->iterator, states[static_cast<size_t>(t) % states.size()]);
    EXPECT_TRUE(outcome.ok()) << outcome.Text();
  });
}

// All rows of the shares, in any order, without filler rows.
Shared RowsOf(const std::vector<std::vector<Shared>>& shares) {
  Shared rows;
  for (const auto& of_rank : shares) {
    for (const Shared& share : of_rank)
      std::copy_if(share.begin(), share.end(), std::back_inserter(rows), [](auto& row) { return !row.second; });
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

struct Where {
  plan::Batch batch;
  uint64_t epochs, steps;
};

class CacheResume : public testing::TestWithParam<Where> {};

TEST_P(CacheResume, TheEpochGoesOn) {
  const auto [batch, epochs, steps] = GetParam();
  const std::vector<SinkState> states = SavedAfter(Saving(batch), epochs, steps);
  for (const SinkState::Lane& lane : states[0].lanes) EXPECT_LT(lane.reader_state.size(), 300u);
  CacheJob job(Saving(batch));
  ExpectEpoch(job, RunRestored(&job, states), epochs + 1, steps);
  ExpectEpoch(&job, epochs + 2);
  EXPECT_EQ(job.pulled(), 12u) << "the load runs once";
}

TEST_P(CacheResume, WithOtherRanksAndHostsEveryRowComesOnce) {
  const auto [batch, epochs, steps] = GetParam();
  const std::vector<SinkState> states = SavedAfter(Saving(batch), epochs, steps);
  CacheJob::Options options = Saving(batch);
  options.members = ThreeRanks();
  options.cache_bytes = 1000, options.cache_folder = "/tmp";  // the other rows are in files
  std::vector<SinkState> again;
  std::vector<std::vector<Shared>> taken;
  {
    CacheJob job(options);
    const auto all = RunRestored(&job, states, 1);  // one more step, and saves again
    again = SavedBy(&job, all);
    taken = SharesOf(all);
  }
  CacheJob job(Saving(batch));
  for (const auto& of_rank : RunRestored(&job, again)) {
    EXPECT_TRUE(of_rank->end) << of_rank->outcome.Text();
    taken.push_back(of_rank->shares);
  }
  EXPECT_EQ(RowsOf(taken), RowsOf(OracleOf(job, epochs + 1, steps)));
}

INSTANTIATE_TEST_SUITE_P(Places, CacheResume,
                         testing::Values(Where{plan::Batch::kGlobal, 0, 0}, Where{plan::Batch::kGlobal, 0, 3},
                                         Where{plan::Batch::kGlobal, 2, 5}, Where{plan::Batch::kPerRank, 0, 1},
                                         Where{plan::Batch::kPerRank, 2, 1}));

// The part of a record that does not depend on the ranks: counts, and digests.
std::string DeliveredIn(const std::string& record) {
  EXPECT_HAS(record, "\"verdict\": \"complete\"");
  const size_t counts = record.find("\"rows\""), of_ranks = record.find("\"rows_per_rank\"");
  return record.substr(counts, of_ranks - counts) + record.substr(record.find("\"order\""));
}

// Epoch 2 is saved after `steps` steps. Its record is that of a run without a restart, on any number of ranks. Only the
// counts by rank differ.
void ExpectTheAccountGoesOn(CacheJob::Options options, uint64_t steps) {
  options.verify = true;
  std::string undisturbed;
  {
    CacheJob job(options);
    RunEpoch(&job), RunEpoch(&job);
    undisturbed = job.Certificate(View::kKept);
  }
  const std::vector<SinkState> states = SavedAfter(options, 1, steps);
  {
    CacheJob job(options);
    for (const auto& of_rank : RunRestored(&job, states)) EXPECT_TRUE(of_rank->end) << of_rank->outcome.Text();
    EXPECT_EQ(DeliveredIn(job.Certificate(View::kKept)), DeliveredIn(undisturbed));
  }
  options.members = ThreeRanks();
  CacheJob job(options);
  for (const auto& of_rank : RunRestored(&job, states)) EXPECT_TRUE(of_rank->end) << of_rank->outcome.Text();
  EXPECT_EQ(DeliveredIn(job.Certificate(View::kKept)), DeliveredIn(undisturbed));
}

TEST(CacheState, AVerifiedEpochGoesOn) {
  ExpectTheAccountGoesOn(Saving(plan::Batch::kGlobal), 4);
  ExpectTheAccountGoesOn(Saving(plan::Batch::kPerRank), 1);
}

// The steps before the checkpoint leave out what does not divide by 4. The later ones leave out nothing, on 3 or 4
// ranks.
TEST(CacheState, AVerifiedEpochThatDropsRowsGoesOn) {
  CacheJob::Options options = Saving(plan::Batch::kGlobal);
  options.remainder = plan::Remainder::kDrop;
  options.elements.rows = {{8, 6, 3, 7, 12, 12, 24, 12}};
  ExpectTheAccountGoesOn(options, 3);
}

TEST(CacheState, RecordsAreAlikeOnAnyRanks) {
  for (const plan::Batch batch : {plan::Batch::kGlobal, plan::Batch::kPerRank}) {
    for (const plan::Remainder remainder :
         {plan::Remainder::kPartial, plan::Remainder::kPad, plan::Remainder::kRepeat}) {
      std::vector<std::string> records[2];
      for (const auto& members : {FourRanks(), ThreeRanks(), std::vector<Member>{{"a", 0, 0, 0, 0}}}) {
        CacheJob::Options options = Saving(batch);
        options.members = members;
        options.remainder = remainder;
        options.verify = true;
        CacheJob job(options);
        for (std::vector<std::string>& of_epoch : records) {
          RunEpoch(&job);
          of_epoch.push_back(DeliveredIn(job.Certificate(View::kKept)));
          EXPECT_EQ(of_epoch.back(), of_epoch.front());
        }
      }
      EXPECT_NE(records[0], records[1]) << "each epoch has an order of its own";
    }
  }
}

TEST(CacheState, AnotherOrderIsRefusedBeforeARow) {
  for (const auto& [epochs, longer] : {std::pair{0, false}, {2, false}, {2, true}}) {
    const std::vector<SinkState> states = SavedAfter(Saving(plan::Batch::kGlobal), epochs, 3);
    CacheJob::Options options = Saving(plan::Batch::kGlobal);
    options.elements.reorders = !longer;
    if (longer) options.elements.rows[0].push_back(8);
    CacheJob job(options);
    for (const auto& of_rank : RunRestored(&job, states)) {
      EXPECT_TRUE(of_rank->shares.empty());
      EXPECT_EQ(of_rank->outcome.code, kDataLoss);
      EXPECT_HAS(of_rank->outcome.message, "Give every shuffle a seed") << of_rank->outcome.Text();
    }
  }
}

TEST(CacheState, RanksMaySaveAtDifferentSteps) {
  for (const plan::Batch batch : {plan::Batch::kGlobal, plan::Batch::kPerRank}) {
    for (const uint64_t epochs : {0, 1}) {
      std::vector<SinkState> states;
      {
        CacheJob job(Saving(batch));
        for (uint64_t i = 0; i < epochs; ++i) RunEpoch(&job);
        states = SavedBy(
            &job, RunEpoch(&job, 1, [](int t, CacheIteration* mine) { mine->Take(static_cast<uint64_t>(t % 3)); }));
      }
      CacheJob job(Saving(batch));
      const auto all = RunRestored(&job, states);
      for (size_t t = 0; t < all.size(); ++t) {
        EXPECT_TRUE(all[t]->end) << all[t]->outcome.Text();
        EXPECT_EQ(all[t]->shares, OracleOf(job, epochs + 1, 1 + t % 3)[t]);
      }
    }
  }
}

// Epoch 2 waits for the load, and has given nothing yet.
TEST(CacheState, ARankMaySaveWhileAnEpochWaitsForTheLoad) {
  std::promise<void> go_on;
  CacheJob::Options options = Saving(plan::Batch::kGlobal);
  options.elements.WaitBefore(6, &go_on);
  std::vector<SinkState> states;
  {
    CacheJob job(options);
    RunEpoch(&job, 2);
    const auto all = RunEpoch(&job, 1, [&](int t, CacheIteration* mine) {
      std::thread cancels([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        job.sink(t).Cancel(&mine->iterator);
      });
      mine->Take(1);
      EXPECT_EQ(mine->outcome.code, kCancelled) << mine->outcome.Text();
      cancels.join();
      mine->end = true;
    });
    states = SavedBy(&job, all);
    go_on.set_value();
  }
  KeptState state;
  ASSERT_TRUE(KeptState::Decode(states[0].lanes[0].reader_state, &state));
  EXPECT_EQ(state.number, 2u);
  EXPECT_EQ(state.steps, 6u);
  CacheJob job(Saving(plan::Batch::kGlobal));
  EXPECT_EQ(SharesOf(RunRestored(&job, states)), OracleOf(job, 2));
}

// The job has left its first epoch early, and then an epoch of another run is restored.
TEST(CacheState, AnEpochIsRestoredBehindALeftOne) {
  const std::vector<SinkState> states = SavedAfter(Saving(plan::Batch::kGlobal), 2, 3);
  CacheJob job(Saving(plan::Batch::kGlobal));
  RunEpoch(&job, 2);
  ExpectEpoch(job, RunRestored(&job, states), 3, 3);
  ExpectEpoch(&job, 4);
}

TEST(CacheState, AnotherSeedIsRefused) {
  const std::vector<SinkState> states = SavedAfter(Saving(plan::Batch::kGlobal), 1, 3);
  CacheJob::Options options = Saving(plan::Batch::kGlobal);
  options.seed = 8;
  CacheJob job(options);
  for (const auto& of_rank : RunRestored(&job, states)) {
    EXPECT_EQ(of_rank->outcome.message,
              "a checkpoint of a cached channel with batch=\"global\", shuffle=True, seed=7 was restored into one with "
              "batch=\"global\", shuffle=True, seed=8");
  }
}

// A rank saves while the epoch waits for the load.
TEST(CacheState, ARankMaySaveDuringTheLoad) {
  std::promise<void> go_on;
  CacheJob::Options options = Saving(plan::Batch::kGlobal);
  options.elements.WaitBefore(6, &go_on);
  CacheJob job(options);
  const auto states = SavedAfter(&job, 0, 6);
  KeptState state;
  ASSERT_TRUE(KeptState::Decode(states[0].lanes[0].reader_state, &state));
  EXPECT_EQ(state.steps, 6u);
  EXPECT_FALSE(state.loaded);
  go_on.set_value();
}

TEST(KeptState, OtherBytesAreNone) {
  const KeptState whole{"mode", 3, 4, 5, 6, true};
  const std::string bytes = whole.Encode();
  KeptState state;
  ASSERT_TRUE(KeptState::Decode(bytes, &state));
  EXPECT_EQ(state.mode, "mode");
  EXPECT_EQ(state.hash, 6u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(KeptState::Decode(std::string_view(bytes).substr(0, size), &state)) << size;
  }
  EXPECT_FALSE(KeptState::Decode(bytes + "x", &state));
}

}  // namespace
}  // namespace hvdata
