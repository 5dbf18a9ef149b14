// SPDX-License-Identifier: Apache-2.0
// Readers that take turns, against what the order is said to be.
#include "channel_readers_job.h"

#include <numeric>

namespace hvdata {
namespace {

// What one reader has to deal: elements [begin, end) of its epoch, its next step being number `turn`.
struct Stretch {
  uint64_t begin = 0, end = 0, turn = 0;
};

std::vector<Stretch> Whole(const Lengths& lengths) {
  std::vector<Stretch> all;
  for (uint64_t length : lengths) all.push_back({0, length, 0});
  return all;
}

// Trainer t's shares of `n` trainers, as the documentation tells it: in round k every reader that has a whole step left
// deals its k-th; what is left then, reader 0's first, is dealt like cards.
std::vector<Numbers> Expected(uint64_t epoch, std::vector<Stretch> readers, size_t n, plan::Remainder remainder) {
  std::vector<Numbers> shares(n);
  const auto number = [&](size_t r, uint64_t k) { return Number(epoch, static_cast<int>(r), k); };
  for (;;) {
    size_t best = readers.size();
    for (size_t r = 0; r < readers.size(); ++r) {
      if (readers[r].end - readers[r].begin < n) continue;
      if (best == readers.size() || readers[r].turn < readers[best].turn) best = r;
    }
    if (best == readers.size()) break;
    for (size_t t = 0; t < n; ++t) shares[t].push_back(number(best, readers[best].begin++));
    ++readers[best].turn;
  }
  Numbers left;
  for (size_t r = 0; r < readers.size(); ++r) {
    for (uint64_t k = readers[r].begin; k < readers[r].end; ++k) left.push_back(number(r, k));
  }
  for (size_t first = 0; first < left.size(); first += n) {
    if (first + n > left.size() && remainder == plan::Remainder::kDrop) break;
    for (size_t t = 0; t < n; ++t)
      shares[t].push_back(first + t < left.size() ? left[first + t] : left[first] + kFiller);
  }
  return shares;
}

TEST_P(ReadersJob, StaticEpochs) {
  const Job::Options options = Shape();
  std::vector<Lengths> epochs;
  for (int e = 0; e < 4; ++e) epochs.push_back(RandomLengths(options.readers, 12));
  Job job(options, Of(epochs));
  job.RunTrainers([&](int t) {
    std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
    for (uint64_t epoch = 1; epoch <= epochs.size(); ++epoch) {
      const auto n = static_cast<size_t>(options.trainers);
      Numbers expected = Expected(epoch, Whole(epochs[epoch - 1]), n, options.remainder)[static_cast<size_t>(t)];
      const uint64_t most = mine() % 4 == 0 ? 1 + mine() % 6 : ~0ull;
      Iteration iteration(&job, t);
      for (uint64_t i = 0; i < most && iteration.Take(1); ++i) Dawdle(&mine);
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      if (most < expected.size()) expected.resize(most);
      EXPECT_EQ(iteration.numbers, expected) << "trainer " << t << ", epoch " << epoch;
    }
  });
}

TEST_P(ReadersJob, AStepThatCannotBeFilledFailsForAllInTheSamePlace) {
  Job::Options options = Shape();
  options.remainder = plan::Remainder::kPartial;
  options.has_fillers = false;
  const Lengths lengths = RandomLengths(options.readers, 12);
  const uint64_t all = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
  const auto n = static_cast<size_t>(options.trainers);
  Job job(options, Of({lengths}));
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    EXPECT_FALSE(iteration.Take());
    EXPECT_EQ(iteration.numbers, Expected(1, Whole(lengths), n, plan::Remainder::kDrop)[static_cast<size_t>(t)]);
    EXPECT_EQ(iteration.outcome.code, all % n == 0 ? kOk : kInvalidArgument) << iteration.outcome.message;
  });
}

TEST_P(ReadersJob, AReaderThatFailsAndTheOthersGoOn) {
  Job::Options options = Shape();
  options.on_error_continue = true;
  const auto culprit = static_cast<int>(GetParam()) % options.readers;
  Lengths lengths = RandomLengths(options.readers, 12);
  const auto n = static_cast<size_t>(options.trainers);
  const uint64_t failing = random_() % (3 * n);
  Job job(options, [&](int reader, uint64_t, uint64_t k, const std::atomic<bool>&, bool* end) {
    if (reader == culprit && k == failing) return Outcome(kInternal, "broken");
    *end = reader != culprit && k >= lengths[static_cast<size_t>(reader)];
    return Outcome();
  });
  std::vector<Stretch> rest = Whole(lengths);
  rest[static_cast<size_t>(culprit)].end = failing / n * n;  // the step in which it fails is lost with the rest
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    EXPECT_FALSE(iteration.Take());
    EXPECT_EQ(iteration.outcome.ok(), options.readers > 1) << iteration.outcome.message;
    if (options.readers == 1) return;  // there is nobody to go on with
    EXPECT_EQ(iteration.numbers, Expected(1, rest, n, options.remainder)[static_cast<size_t>(t)]);
  });
}

TEST_P(ReadersJob, WhenAllReadersHaveFailedThatIsAnError) {
  Job::Options options = Shape();
  options.on_error_continue = true;
  Lengths failing = RandomLengths(options.readers, 12);
  const auto n = static_cast<size_t>(options.trainers);
  Job job(options, [&](int reader, uint64_t, uint64_t k, const std::atomic<bool>&, bool*) {
    return k == failing[static_cast<size_t>(reader)] ? Outcome(kInternal, "broken") : Outcome();
  });
  for (uint64_t& length : failing) length = length / n * n;  // the step in which it fails is lost
  job.RunTrainers([&](int t) {
    Iteration iteration(&job, t);
    EXPECT_FALSE(iteration.Take());
    EXPECT_EQ(iteration.outcome.code, kInternal) << iteration.outcome.message;
    EXPECT_EQ(iteration.numbers, Expected(1, Whole(failing), n, plan::Remainder::kDrop)[static_cast<size_t>(t)]);
  });
}

// Every rank has taken some, one or the other a little more, and saves; a new job goes on.
TEST_P(ReadersJob, SavedByAllAndGoneOnWith) {
  const Job::Options options = Shape();
  const Lengths lengths = RandomLengths(options.readers, 10);
  const auto n = static_cast<size_t>(options.trainers);
  const std::vector<Numbers> expected = Expected(1, Whole(lengths), n, options.remainder);
  // A rank that takes nothing has not begun: a reader that trains waits until its own rank has, and any with prefetch=1 until all have.
  const uint64_t base =
      std::max<uint64_t>(random_() % (expected[0].size() + 1), options.dedicated && options.prefetch > 1 ? 0 : 1);
  SaveAndGoOn(options, options, lengths, expected, [&](size_t t) {
    return std::min<uint64_t>(base + t % static_cast<size_t>(options.prefetch + 1), expected[t].size());
  });
}

// With as wide a window as "auto" may come to, after which that begins with two steps again: some ranks are farther ahead of others
// than the new window, in which some reader may have no step for them.
TEST_P(ReadersJob, SavedByAllFarApartAndGoneOnWith) {
  Job::Options options = Shape(), later = Shape();
  options.readers = later.readers = 2 + static_cast<int>(GetParam() % 3);
  options.trainers = later.trainers = 2 + static_cast<int>(GetParam() / 3 % 3);
  options.dedicated = later.dedicated = true;
  options.prefetch = 2 + static_cast<int>(random_() % 15);
  later.prefetch = 1 + static_cast<int>(random_() % 3);
  later.fits_itself = GetParam() % 2 == 0;
  const Lengths lengths(static_cast<size_t>(options.readers), 40);
  const std::vector<Numbers> expected =
      Expected(1, Whole(lengths), static_cast<size_t>(options.trainers), options.remainder);
  const uint64_t base = random_() % (expected[0].size() / 2);
  SaveAndGoOn(options, later, lengths, expected, [&](size_t t) {
    return std::min<uint64_t>(base + (t == 0 ? 0 : 1 + (GetParam() + t) % static_cast<size_t>(options.prefetch)),
                              expected[t].size());
  });
}

// All stand at the same step; rank 0 alone saves and restores, and may do it on another number of ranks.
TEST_P(ReadersJob, SavedByRankZeroAlone) {
  Job::Options options = Shape();
  Lengths lengths = RandomLengths(options.readers, 14);
  const auto n = static_cast<size_t>(options.trainers);
  const std::vector<Numbers> before = Expected(1, Whole(lengths), n, options.remainder);
  uint64_t whole = 0;  // steps before the last ones
  for (uint64_t length : lengths) whole += length / n;
  const bool others = GetParam() % 2 == 1 && whole > 0;
  const uint64_t base = random_() % ((others ? whole : before[0].size()) + 1);
  SinkState state;
  {
    Job job(options, Of({lengths}));
    job.RunTrainers([&](int t) {
      Iteration iteration(&job, t);
      iteration.Take(base);
      EXPECT_EQ(iteration.numbers.size(), base);
      if (t > 0) return;
      const Outcome saved = job.sink(t).Save(&iteration.iterator, &state);
      EXPECT_TRUE(saved.ok()) << saved.message;
    });
  }
  if (state.kind == SinkState::kUnused) return;  // nobody took anything
  if (others) options.trainers += 1;
  const auto m = static_cast<size_t>(options.trainers);
  std::vector<Numbers> expected = before;
  for (Numbers& mine : expected) mine.erase(mine.begin(), mine.begin() + static_cast<int64_t>(base));
  if (others) {
    std::vector<Stretch> rest = Whole(lengths);
    for (size_t r = 0; r < rest.size(); ++r) rest[r] = {state.lanes[r].position.n, lengths[r], state.lanes[r].turn.n};
    expected = Expected(1, rest, m, options.remainder);
  }
  Job job(options, Of({lengths}));
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
  const Outcome restored = job.sink(0).Restore(&iterations[0]->iterator, state);
  EXPECT_TRUE(restored.ok()) << restored.message;
  job.RunTrainers([&](int t) {
    const auto at = static_cast<size_t>(t);
    EXPECT_FALSE(iterations[at]->Take());
    EXPECT_TRUE(iterations[at]->outcome.ok()) << iterations[at]->outcome.message;
    EXPECT_EQ(iterations[at]->numbers, expected[at]) << "trainer " << t << ", saved at " << base;
  });
}

TEST_P(ReadersJob, DynamicEpochsSavedAndGoneOnWith) {
  Job::Options options = Shape();
  options.schedule = plan::Schedule::kDynamic;
  const Lengths lengths = RandomLengths(options.readers, 20);
  const auto n = static_cast<size_t>(options.trainers);
  std::vector<SinkState> states(n);
  Numbers all, expected;
  std::mutex mu;
  for (size_t r = 0; r < lengths.size(); ++r) {
    for (uint64_t k = 0; k < lengths[r]; ++k) expected.push_back(Number(1, static_cast<int>(r), k));
  }
  {
    Job job(options, Of({lengths}));
    std::vector<std::unique_ptr<Iteration>> iterations;
    for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
    job.RunTrainers([&](int t) {
      std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
      Iteration& iteration = *iterations[static_cast<size_t>(t)];
      for (uint64_t i = 0; i < 1 + GetParam() % 7 && iteration.Take(1); ++i) Dawdle(&mine);
    });
    job.RunTrainers([&](int t) {  // between two steps of a job, one rank a little later than the other
      std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
      Iteration& iteration = *iterations[static_cast<size_t>(t)];
      Dawdle(&mine);
      const Outcome saved = job.sink(t).Save(&iteration.iterator, &states[static_cast<size_t>(t)]);
      EXPECT_TRUE(saved.ok()) << saved.message;
      std::lock_guard<std::mutex> lock(mu);
      Append(&all, iteration.numbers);
    });
  }
  Job job(options, Of({lengths}));
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
  job.RunTrainers([&](int t) {
    std::mt19937 mine(GetParam() * 16 + static_cast<unsigned>(t));
    Iteration& iteration = *iterations[static_cast<size_t>(t)];
    const Outcome restored = job.sink(t).Restore(&iteration.iterator, states[static_cast<size_t>(t)]);
    EXPECT_TRUE(restored.ok()) << restored.message;
    while (iteration.Take(1)) Dawdle(&mine);
    EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
    std::lock_guard<std::mutex> lock(mu);
    Append(&all, iteration.numbers);
  });
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, expected);
}

// A rank that takes one and then sleeps, for as long as the others need for all the rest.
TEST_P(ReadersJob, ADynamicRankThatSleepsHoldsNobody) {
  Job::Options options = Shape();
  options.schedule = plan::Schedule::kDynamic;
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

INSTANTIATE_TEST_SUITE_P(Seeds, ReadersJob, testing::Range(0u, 48u));

// Saved by rank 0 alone when some readers have dealt one step more than others, none perhaps: what the other rank thinks of their turns
// and what the readers do with its limits must not go in a circle.
TEST(ReadersJobs, OneRankAloneIsRestoredWithinARound) {
  for (const int readers : {2, 3, 4}) {
    for (const int prefetch : {0, 1, 2, 3}) {  // 0: fits itself
      for (uint64_t base = 1; base < 3 * static_cast<uint64_t>(readers); ++base) {
        Job::Options options;
        options.dedicated = true;
        options.readers = readers;
        options.trainers = 2;
        options.batch = plan::Batch::kPerRank;
        options.fits_itself = prefetch == 0;
        options.prefetch = std::max(prefetch, 1);
        const Job::Pipeline pipeline = [](int, uint64_t, uint64_t k, const std::atomic<bool>&, bool* end) {
          *end = k >= 12;
          return Outcome();
        };
        SinkState state;
        std::vector<Numbers> before(2), rest(2);
        {
          Job job(options, pipeline);
          job.RunTrainers([&](int t) {
            Iteration iteration(&job, t);
            iteration.Take(base);
            before[static_cast<size_t>(t)] = iteration.numbers;
            if (t > 0) return;
            EXPECT_TRUE(job.sink(t).Save(&iteration.iterator, &state).ok());
          });
        }
        Job job(options, pipeline);
        std::vector<std::unique_ptr<Iteration>> iterations;
        for (int t = 0; t < 2; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
        EXPECT_TRUE(job.sink(0).Restore(&iterations[0]->iterator, state).ok());
        job.RunTrainers([&](int t) {
          EXPECT_FALSE(iterations[static_cast<size_t>(t)]->Take());
          EXPECT_TRUE(iterations[static_cast<size_t>(t)]->outcome.ok())
              << iterations[static_cast<size_t>(t)]->outcome.message;
          rest[static_cast<size_t>(t)] = iterations[static_cast<size_t>(t)]->numbers;
        });
        for (size_t t = 0; t < 2; ++t) {
          EXPECT_EQ(before[t].size() + rest[t].size(), 6 * static_cast<size_t>(readers))
              << readers << " readers, prefetch " << prefetch << ", saved behind step " << base;
        }
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace hvdata
