// SPDX-License-Identifier: Apache-2.0
// Readers with trainers of their own, which keep in step.
#include "channel_any_job.h"

namespace hvdata {
namespace {

class GroupedJob : public AnyJob {
 protected:
  // Two or three groups.
  static Job::Options Groups() {
    Job::Options options = Shape();
    options.grouped = true;
    options.readers = std::max(options.readers, 2);
    options.batch = plan::Batch::kPerRank;
    options.trainers =
        options.readers * (1 + static_cast<int>(GetParam() / 4 % 2)) + static_cast<int>(GetParam() / 8 % 2);
    if (options.remainder == plan::Remainder::kPartial) options.batch = plan::Batch::kGlobal;
    return options;
  }
  // The trainers of each reader.
  static std::vector<std::vector<int>> Members(const Job::Options& options) {
    std::vector<std::vector<int>> members(static_cast<size_t>(options.readers));
    for (int t = 0; t < options.trainers; ++t) {
      members[static_cast<size_t>(t * options.readers / options.trainers)].push_back(t);
    }
    return members;
  }
  // Trainer t's shares are those of its own reader: up to the end of the shortest epoch (drop) or of the longest
  // (fillers, on the model of the reader's last step).
  static std::vector<Numbers> SharesOf(uint64_t epoch, const Job::Options& options, const Lengths& lengths) {
    std::vector<Numbers> shares(static_cast<size_t>(options.trainers));
    const auto members = Members(options);
    const bool drop = options.remainder == plan::Remainder::kDrop;
    size_t least = ~size_t{0}, most = 0;
    Numbers fillers(shares.size(), kFiller);
    for (size_t r = 0; r < members.size(); ++r) {
      const size_t n = members[r].size();
      const size_t whole = options.batch == plan::Batch::kPerRank ? n : 1;
      for (size_t first = 0; first < lengths[r] && (first + whole <= lengths[r] || !drop); first += whole) {
        for (size_t i = 0; i < n; ++i) {
          const size_t k = whole == 1 ? first : first + i;
          const uint64_t number = Number(epoch, static_cast<int>(r), k < lengths[r] ? k : first);
          const auto trainer = static_cast<size_t>(members[r][i]);
          shares[trainer].push_back(number + (k < lengths[r] ? 0 : kFiller));
          fillers[trainer] = kFiller + Number(epoch, static_cast<int>(r), first);
        }
      }
      const size_t steps = shares[static_cast<size_t>(members[r][0])].size();
      least = std::min(least, steps);
      most = std::max(most, steps);
    }
    for (size_t t = 0; t < shares.size(); ++t) shares[t].resize(drop ? least : most, fillers[t]);
    return shares;
  }
};

TEST_P(GroupedJob, AllEndInTheSameStep) {
  const Job::Options options = Groups();
  RunEpochs(options, [&](uint64_t epoch, const Lengths& lengths) { return SharesOf(epoch, options, lengths); }, false);
}

TEST_P(GroupedJob, AnErrorOfOneReaderEndsAllInTheSameStepAndTheNextEpochWorks) {
  const Job::Options options = Groups();
  const int culprit = static_cast<int>(GetParam()) % options.readers;
  const Lengths lengths(static_cast<size_t>(options.readers), 12);
  const size_t n = Members(options)[static_cast<size_t>(culprit)].size();
  const uint64_t failing = random_() % 4;
  const uint64_t whole = options.batch == plan::Batch::kPerRank ? n : 1;
  Job job(options, [&](int reader, uint64_t epoch, uint64_t k, const auto&, bool* end) {
    if (epoch == 1 && reader == culprit && k == failing * whole) return Outcome(15, "record 7 is corrupt");
    *end = k >= 12;
    return Outcome();
  });
  job.RunTrainers([&](int t) {
    Iteration first(&job, t);
    EXPECT_FALSE(first.Take());
    EXPECT_EQ(first.outcome.code, 15);
    EXPECT_HAS(first.outcome.Text(), "[reader " + std::to_string(culprit) + " on ");
    EXPECT_EQ(first.numbers.size(), failing);
    Iteration second(&job, t);
    EXPECT_FALSE(second.Take());
    EXPECT_TRUE(second.outcome.ok()) << second.outcome.message;
    EXPECT_EQ(second.numbers, SharesOf(2, options, lengths)[static_cast<size_t>(t)]);
  });
}

// All ranks of one host leave, in mid-epoch or for good: the others go on without it.
TEST_P(GroupedJob, AHostThatLeavesHoldsNobody) {
  Job::Options options = Groups();
  options.remainder = plan::Remainder::kDrop;
  const Lengths lengths(static_cast<size_t>(options.readers), 8);
  const auto members = Members(options);
  const size_t leaver = GetParam() % members.size();
  const bool for_good = GetParam() % 3 == 0;
  Job job(options, Of({lengths, lengths, lengths}));
  job.RunTrainers([&](int t) {
    const bool leaves = std::count(members[leaver].begin(), members[leaver].end(), t) > 0;
    for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
      Iteration iteration(&job, t);
      if (leaves && epoch == 2) {
        iteration.Take(1);
        if (for_good) return job.Leave(t);
        continue;
      }
      EXPECT_FALSE(iteration.Take());
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      if (epoch != 1 && (epoch == 2 || for_good)) continue;  // its last step depends on which ranks have departed
      EXPECT_EQ(iteration.numbers, SharesOf(epoch, options, lengths)[static_cast<size_t>(t)]) << "trainer " << t;
    }
  });
}

TEST_P(GroupedJob, SavedByAllAndGoneOnWith) {
  Job::Options options = Groups();
  const Lengths lengths = RandomLengths(options.readers, 10);
  const std::vector<Numbers> expected = SharesOf(1, options, lengths);
  const auto members = Members(options);
  uint64_t shortest = ~0ull;  // fillers of a reader's own have no position: uneven ranks are saved before them
  for (size_t r = 0; r < lengths.size(); ++r) {
    const uint64_t whole = options.batch == plan::Batch::kPerRank ? members[r].size() : 1;
    shortest = std::min(shortest, lengths[r] / whole);
  }
  const uint64_t base = random_() % (expected[0].size() + 1);
  const auto window = static_cast<uint64_t>(options.prefetch);
  const uint64_t spread = base + window <= shortest ? window : 1;
  const auto taken = [&](size_t t) {
    const bool sees_the_end = base == expected[t].size() && t % 2 == 0;
    // A dedicated reader begins when one of its ranks does. A reader that trains begins when its own rank does. So a
    // rank that takes nothing keeps the other ranks from seeing that no element is left.
    return sees_the_end ? ~0ull
                        : std::max<uint64_t>(base + t % spread, options.dedicated && !expected[t].empty() ? 0 : 1);
  };
  GoOn(options, lengths, Save(options, lengths, taken), expected);
}

TEST_P(GroupedJob, DynamicHostsServeTheirOwn) {
  Job::Options options = Groups();
  options.schedule = plan::Schedule::kDynamic;
  options.batch = plan::Batch::kPerRank;
  const Lengths lengths = RandomLengths(options.readers, 15);
  const auto members = Members(options);
  std::vector<Numbers> got(static_cast<size_t>(options.trainers));
  Job job(options, Of({lengths}));
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    EXPECT_FALSE(iteration.Take());
    EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
    got[static_cast<size_t>(t)] = iteration.numbers;
  });
  for (size_t r = 0; r < members.size(); ++r) {
    Numbers all;
    for (int t : members[r]) Append(&all, got[static_cast<size_t>(t)]);
    std::sort(all.begin(), all.end());
    Numbers expected;
    for (uint64_t k = 0; k < lengths[r]; ++k) expected.push_back(Number(1, static_cast<int>(r), k));
    EXPECT_EQ(all, expected) << "reader " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, GroupedJob, testing::Range(0u, 48u));

TEST(OneGroupedJob, WhoKeepsTheOthersWaiting) {
  Job::Options options;
  options.trainers = 2;
  options.readers = 2;
  options.grouped = true;
  options.stall = 10;
  options.timeout = 4;
  Job job(options, Job::Elements(100));
  Iteration alone(&job, 0);
  EXPECT_FALSE(alone.Take());
  EXPECT_EQ(alone.outcome.code, kDeadlineExceeded);
  EXPECT_HAS(alone.outcome.message, "reader 0 on node0 has step 0 and waits for reader 1 on node1, which has not");
}

}  // namespace
}  // namespace hvdata
