// SPDX-License-Identifier: Apache-2.0
// Readers that share all trainers, against the documented order.
#include "channel_any_job.h"

#include <numeric>

namespace hvdata {
namespace {

class ReadersJob : public AnyJob {
 protected:
  // Two or three readers of per-rank batches.
  static Job::Options Several() {
    Job::Options options = Shape();
    options.readers = std::max(options.readers, 2);
    if (!options.dedicated) options.trainers = std::max(options.trainers, options.readers);
    options.batch = plan::Batch::kPerRank;
    return options;
  }
};

TEST_P(ReadersJob, StaticEpochsWithEarlyCloses) {
  Job::Options options = Shape();
  options.fits_itself = GetParam() % 8 == 3;
  RunEpochs(
      options, [&](uint64_t epoch, const Lengths& lengths) { return Expected(options, epoch, Whole(lengths)); }, true);
}

TEST_P(ReadersJob, AStepThatCannotBeFilledFailsForAllInTheSamePlace) {
  Job::Options options = Several(), drop = options;
  options.remainder = plan::Remainder::kPartial;
  options.has_fillers = false;
  drop.remainder = plan::Remainder::kDrop;
  const Lengths lengths = RandomLengths(options.readers, 12);
  const uint64_t all = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
  Job job(options, Of({lengths}));
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    EXPECT_FALSE(iteration.Take());
    EXPECT_EQ(iteration.numbers, Expected(drop, 1, Whole(lengths))[static_cast<size_t>(t)]);
    EXPECT_EQ(iteration.outcome.code, all % static_cast<uint64_t>(options.trainers) == 0 ? kOk : kInvalidArgument)
        << iteration.outcome.message;
  });
}

TEST_P(ReadersJob, ReadersThatFailAndTheOthersGoOn) {
  Job::Options options = Several();
  options.on_error_continue = true;
  const auto n = static_cast<size_t>(options.trainers);
  const bool all = GetParam() % 3 == 0;  // without another one to go on with
  const size_t culprit = GetParam() % static_cast<size_t>(options.readers);
  Lengths lengths = RandomLengths(options.readers, 12);
  const auto fails = [all, culprit](size_t reader) { return all || reader == culprit; };
  Job job(options, [&, lengths](int reader, uint64_t, uint64_t k, const auto&, bool* end) {
    if (k < lengths[static_cast<size_t>(reader)]) return Outcome();
    if (fails(static_cast<size_t>(reader))) return Outcome(kInternal, "broken");
    *end = true;
    return Outcome();
  });
  for (size_t r = 0; r < lengths.size(); ++r) {
    if (fails(r)) lengths[r] = lengths[r] / n * n;  // the step in which it fails is lost
  }
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    EXPECT_FALSE(iteration.Take());
    EXPECT_EQ(iteration.outcome.code, all ? kInternal : kOk) << iteration.outcome.message;
    EXPECT_EQ(iteration.numbers, Expected(options, 1, Whole(lengths))[static_cast<size_t>(t)]);
  });
}

// Every rank has taken some steps, and one or the other a few more. All save, and a new job resumes.
TEST_P(ReadersJob, SavedByAllAndGoneOnWith) {
  const Job::Options options = Shape();
  const Lengths lengths = RandomLengths(options.readers, 10);
  const std::vector<Numbers> expected = Expected(options, 1, Whole(lengths));
  // A rank that takes nothing has not begun. A reader that trains waits for its own rank. With prefetch=1, any reader
  // waits for all ranks.
  const uint64_t base =
      std::max<uint64_t>(random_() % (expected[0].size() + 1), options.dedicated && options.prefetch > 1 ? 0 : 1);
  const auto taken = [&](size_t t) {
    return std::min<uint64_t>(base + t % static_cast<size_t>(options.prefetch + 1), expected[t].size());
  };
  GoOn(options, lengths, Save(options, lengths, taken), expected);
}

// The window is as wide as "auto" can make it. After a restore, "auto" begins with two steps again. So some ranks are
// ahead of others by more than the new window, and some reader may have no step for them in it.
TEST_P(ReadersJob, SavedByAllFarApartAndGoneOnWith) {
  Job::Options options = Several();
  options.readers = 2 + static_cast<int>(GetParam() % 3);
  options.trainers = 2 + static_cast<int>(GetParam() / 3 % 3);
  options.dedicated = true;
  Job::Options later = options;
  options.prefetch = 2 + static_cast<int>(random_() % 15);
  later.prefetch = 1 + static_cast<int>(random_() % 3);
  later.fits_itself = GetParam() % 2 == 0;
  const Lengths lengths(static_cast<size_t>(options.readers), 40);
  const std::vector<Numbers> expected = Expected(options, 1, Whole(lengths));
  const uint64_t base = random_() % (expected[0].size() / 2);
  const auto taken = [&](size_t t) {
    return std::min<uint64_t>(base + (t == 0 ? 0 : 1 + (GetParam() + t) % static_cast<size_t>(options.prefetch)),
                              expected[t].size());
  };
  GoOn(later, lengths, Save(options, lengths, taken), expected);
}

// All ranks are at the same step. Rank 0 alone saves and restores, also on another number of ranks.
TEST_P(ReadersJob, SavedByRankZeroAlone) {
  Job::Options options = Shape();
  const int ranks = options.trainers;
  const bool global = options.batch == plan::Batch::kGlobal;
  if (global) options.rows = ranks + 1;  // so that the later number of ranks divides an element, too
  const Lengths lengths = RandomLengths(options.readers, 14);
  const std::vector<Numbers> before = Expected(options, 1, Whole(lengths));
  uint64_t whole = 0;  // steps before the last ones
  for (uint64_t length : lengths) whole += global ? length : length / static_cast<uint64_t>(options.trainers);
  const bool others = GetParam() % 2 == 1 && whole > 0;
  const uint64_t base = random_() % ((others ? whole : before[0].size()) + 1);
  Saved saved = Save(options, lengths, [&](size_t) { return base; }, true);
  if (saved.states[0].kind == SinkState::kUnused) return;  // no rank took anything
  if (!others) return GoOn(options, lengths, saved, before);
  options.trainers += 1;
  if (global) options.rows = ranks;
  std::vector<Stretch> rest = Whole(lengths);
  for (size_t r = 0; r < rest.size(); ++r) {
    const SinkState::Lane& lane = saved.states[0].lanes[r];
    rest[r] = {lane.position.n, lengths[r], lane.turn.n};
  }
  saved.numbers.clear();
  GoOn(options, lengths, saved, Expected(options, 1, rest));
}

// Rank 0 alone saves when some readers, or none, have dealt one step more than others. The other rank's view of their
// turns and the readers' use of its limits must not make a circular wait.
TEST_P(ReadersJob, OneRankAloneIsRestoredWithinARound) {
  Job::Options options = Several();
  options.dedicated = true;
  options.trainers = 2;
  options.readers = 2 + static_cast<int>(GetParam() / 4 % 3);
  options.fits_itself = options.prefetch == 4;
  const Lengths lengths(static_cast<size_t>(options.readers), 12);
  for (uint64_t base = 1 + GetParam() / 12 % 3; base < 3 * lengths.size(); base += 3) {
    const Saved saved = Save(options, lengths, [&](size_t) { return base; }, true);
    GoOn(options, lengths, saved, Expected(options, 1, Whole(lengths)));
  }
}

TEST_P(ReadersJob, DynamicEpochsSavedAndGoneOnWith) {
  Job::Options options = Shape();
  options.schedule = plan::Schedule::kDynamic;
  options.batch = plan::Batch::kPerRank;
  const Lengths lengths = RandomLengths(options.readers, 20);
  std::vector<SinkState> states(static_cast<size_t>(options.trainers));
  Numbers all, expected;
  std::mutex mu;
  for (size_t r = 0; r < lengths.size(); ++r) {
    for (uint64_t k = 0; k < lengths[r]; ++k) expected.push_back(Number(1, static_cast<int>(r), k));
  }
  const auto take = [&](Iteration* iteration, uint64_t most) {
    std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(most % 5));
    for (uint64_t i = 0; i < most && iteration->Take(1); ++i) Dawdle(&mine);
    EXPECT_TRUE(iteration->outcome.ok()) << iteration->outcome.message;
  };
  const auto keep = [&](const Iteration& iteration) {
    std::lock_guard<std::mutex> lock(mu);
    Append(&all, iteration.numbers);
  };
  {
    Job job(options, Of({lengths}));
    const auto iterations = job.Iterations();
    job.RunTrainers([&](int t) { take(iterations[static_cast<size_t>(t)].get(), 1 + GetParam() % 7); });
    job.RunTrainers([&](int t) {  // between two steps of a job, one rank a little later than the other
      std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
      Iteration& iteration = *iterations[static_cast<size_t>(t)];
      Dawdle(&mine);
      const Outcome saved = job.sink(t).Save(&iteration.iterator, &states[static_cast<size_t>(t)]);
      EXPECT_TRUE(saved.ok()) << saved.message;
      keep(iteration);
    });
  }
  Job job(options, Of({lengths}));
  const auto iterations = job.Iterations();
  job.RunTrainers([&](int t) {
    Iteration& iteration = *iterations[static_cast<size_t>(t)];
    const Outcome restored = iteration.Restore(states[static_cast<size_t>(t)]);
    EXPECT_TRUE(restored.ok()) << restored.message;
    take(&iteration, ~0ull);
    keep(iteration);
  });
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, expected);
}

// A rank takes one step, and then sleeps until the other ranks have taken all the rest.
TEST_P(ReadersJob, ADynamicRankThatSleepsHoldsNobody) {
  Job::Options options = Shape();
  options.schedule = plan::Schedule::kDynamic;
  options.batch = plan::Batch::kPerRank;
  options.trainers = std::max(options.trainers, 2);
  const Lengths lengths(static_cast<size_t>(options.readers), 6);
  Job job(options, Of({lengths}));
  std::atomic<int> out{0};
  std::atomic<size_t> total{0};
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    if (t == 0) {
      iteration.Take(1 + GetParam() % 5);
      while (out < options.trainers - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_FALSE(iteration.Take());
    EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
    ++out;
    total += iteration.numbers.size();
  });
  EXPECT_EQ(total, 6 * lengths.size());
}

INSTANTIATE_TEST_SUITE_P(Seeds, ReadersJob, testing::Range(0u, 60u));

}  // namespace
}  // namespace hvdata
