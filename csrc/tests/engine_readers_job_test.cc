// SPDX-License-Identifier: Apache-2.0
// Whole jobs of several readers at random speeds, against what the order is said to be.
#include <numeric>

#include "engine_job.h"

namespace hvdata {
namespace {

using Numbers = std::vector<uint64_t>;
using Lengths = std::vector<uint64_t>;

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
    for (size_t t = 0; t < n; ++t) shares[t].push_back(first + t < left.size() ? left[first + t] : left[first] + kFiller);
  }
  return shares;
}

void Dawdle(std::mt19937* random) {
  if ((*random)() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 300));
}

void Append(Numbers* all, const Numbers& more) { all->insert(all->end(), more.begin(), more.end()); }

class ReadersJob : public testing::TestWithParam<unsigned> {
 protected:
  // Two or three readers of per-rank batches; dedicated or not.
  Job::Options Shape() {
    Job::Options options;
    options.seed = GetParam();
    options.dedicated = GetParam() % 2 == 0;
    options.readers = 2 + static_cast<int>(GetParam() / 2 % 2);
    options.trainers = 1 + static_cast<int>(GetParam() / 4 % 4);
    if (!options.dedicated) options.trainers = std::max(options.trainers, options.readers);
    options.prefetch = 1 + static_cast<int>(GetParam() % 4);
    options.batch = plan::Batch::kPerRank;
    options.remainder = static_cast<plan::Remainder>(GetParam() % 3);
    return options;
  }
  Lengths RandomLengths(int readers, uint64_t most) {
    Lengths lengths;
    for (int r = 0; r < readers; ++r) lengths.push_back(random_() % 4 == 0 ? 0 : random_() % (most + 1));
    return lengths;
  }
  static Job::Pipeline Of(const std::vector<Lengths>& epochs) {
    return [epochs](int reader, uint64_t epoch, uint64_t k, const std::atomic<bool>&, bool* end) {
      if (k % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(k * 37 % 200));
      *end = k >= epochs[epoch - 1][static_cast<size_t>(reader)];
      return Outcome();
    };
  }

  std::mt19937 random_{GetParam()};
};

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
    EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
    EXPECT_EQ(iteration.numbers, Expected(1, rest, n, options.remainder)[static_cast<size_t>(t)]);
  });
}

// Every rank has taken some, one or the other a little more, and saves; a new job goes on.
TEST_P(ReadersJob, SavedByAllAndGoneOnWith) {
  const Job::Options options = Shape();
  const Lengths lengths = RandomLengths(options.readers, 10);
  const auto n = static_cast<size_t>(options.trainers);
  const std::vector<Numbers> expected = Expected(1, Whole(lengths), n, options.remainder);
  const uint64_t base = random_() % (expected[0].size() + 1);
  std::vector<SinkState> states(n);
  std::vector<Numbers> numbers(n);
  {
    Job job(options, Of({lengths}));
    job.RunTrainers([&](int t) {
      const auto at = static_cast<size_t>(t);
      Iteration iteration(&job, t);
      iteration.Take(std::min<uint64_t>(base + at % static_cast<size_t>(options.prefetch), expected[at].size()));
      const Outcome saved = job.sink(t).Save(&iteration.asker, &states[at]);
      EXPECT_TRUE(saved.ok()) << saved.message;
      numbers[at] = iteration.numbers;
    });
  }
  Job job(options, Of({lengths, lengths}));
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
  job.RunTrainers([&](int t) {
    const auto at = static_cast<size_t>(t);
    const Outcome restored = job.sink(t).Restore(&iterations[at]->asker, states[at]);
    EXPECT_TRUE(restored.ok()) << restored.message;
    EXPECT_FALSE(iterations[at]->Take());
    EXPECT_TRUE(iterations[at]->outcome.ok()) << iterations[at]->outcome.message;
    Append(&numbers[at], iterations[at]->numbers);
    EXPECT_EQ(numbers[at], expected[at]) << "trainer " << t << ", saved at " << base;
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
      const Outcome saved = job.sink(t).Save(&iteration.asker, &state);
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
    for (size_t r = 0; r < rest.size(); ++r) rest[r] = {state.lanes[r].position, lengths[r], state.lanes[r].turn};
    expected = Expected(1, rest, m, options.remainder);
  }
  Job job(options, Of({lengths}));
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
  const Outcome restored = job.sink(0).Restore(&iterations[0]->asker, state);
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
      const Outcome saved = job.sink(t).Save(&iteration.asker, &states[static_cast<size_t>(t)]);
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
    const Outcome restored = job.sink(t).Restore(&iteration.asker, states[static_cast<size_t>(t)]);
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

// ---- Readers with trainers of their own.

class GroupedJob : public ReadersJob {
 protected:
  Job::Options Groups() {
    Job::Options options = Shape();
    options.grouped = true;
    options.trainers = options.readers * (1 + static_cast<int>(GetParam() / 4 % 2)) + static_cast<int>(GetParam() / 8 % 2);
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
  // Trainer t's shares: those of its own reader, as far as the shortest goes (drop) or the longest (fillers).
  static std::vector<Numbers> Shares(uint64_t epoch, const Job::Options& options, const Lengths& lengths) {
    std::vector<Numbers> shares(static_cast<size_t>(options.trainers));
    const auto members = Members(options);
    const bool drop = options.remainder == plan::Remainder::kDrop;
    size_t least = ~size_t{0}, most = 0;
    for (size_t r = 0; r < members.size(); ++r) {
      const size_t n = members[r].size();
      const size_t whole = options.batch == plan::Batch::kPerRank ? n : 1;
      for (size_t first = 0; first < lengths[r] && (first + whole <= lengths[r] || !drop); first += whole) {
        for (size_t i = 0; i < n; ++i) {
          const size_t k = whole == 1 ? first : first + i;
          shares[static_cast<size_t>(members[r][i])].push_back(
              k < lengths[r] ? Number(epoch, static_cast<int>(r), k) : Number(epoch, static_cast<int>(r), first) + kFiller);
        }
      }
      const size_t steps = shares[static_cast<size_t>(members[r][0])].size();
      least = std::min(least, steps);
      most = std::max(most, steps);
    }
    for (Numbers& mine : shares) mine.resize(drop ? least : most, kFiller);
    return shares;
  }
};

TEST_P(GroupedJob, AllEndInTheSameStep) {
  const Job::Options options = Groups();
  std::vector<Lengths> epochs;
  for (int e = 0; e < 4; ++e) epochs.push_back(RandomLengths(options.readers, 10));
  Job job(options, Of(epochs));
  job.RunTrainers([&](int t) {
    std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
    for (uint64_t epoch = 1; epoch <= epochs.size(); ++epoch) {
      Iteration iteration(&job, t);
      while (iteration.Take(1)) Dawdle(&mine);
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      EXPECT_EQ(iteration.numbers, Shares(epoch, options, epochs[epoch - 1])[static_cast<size_t>(t)]) << "trainer " << t;
    }
  });
}

TEST_P(GroupedJob, AnErrorOfOneReaderEndsAllInTheSameStepAndTheNextEpochWorks) {
  const Job::Options options = Groups();
  const int culprit = static_cast<int>(GetParam()) % options.readers;
  const Lengths lengths(static_cast<size_t>(options.readers), 12);
  const size_t n = Members(options)[static_cast<size_t>(culprit)].size();
  const uint64_t failing = random_() % 4;
  const uint64_t whole = options.batch == plan::Batch::kPerRank ? n : 1;
  Job job(options, [&](int reader, uint64_t epoch, uint64_t k, const std::atomic<bool>&, bool* end) {
    if (epoch == 1 && reader == culprit && k == failing * whole) return Outcome(15, "record 7 is corrupt");
    *end = k >= 12;
    return Outcome();
  });
  job.RunTrainers([&](int t) {
    Iteration first(&job, t);
    EXPECT_FALSE(first.Take());
    EXPECT_EQ(first.outcome.code, 15);
    EXPECT_NE(first.outcome.message.find("[reader " + std::to_string(culprit) + " on "), std::string::npos);
    EXPECT_EQ(first.numbers.size(), failing);
    Iteration second(&job, t);
    EXPECT_FALSE(second.Take());
    EXPECT_TRUE(second.outcome.ok()) << second.outcome.message;
    EXPECT_EQ(second.numbers, Shares(2, options, lengths)[static_cast<size_t>(t)]);
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
      if (epoch != 1 && (epoch == 2 || for_good)) continue;  // how far it goes depends on who has left
      EXPECT_EQ(iteration.numbers, Shares(epoch, options, lengths)[static_cast<size_t>(t)]) << "trainer " << t;
    }
  });
}

TEST_P(GroupedJob, SavedByAllAndGoneOnWith) {
  Job::Options options = Groups();
  const Lengths lengths = RandomLengths(options.readers, 10);
  const std::vector<Numbers> expected = Shares(1, options, lengths);
  const auto n = static_cast<size_t>(options.trainers);
  const auto members = Members(options);
  uint64_t shortest = ~0ull;  // fillers of a reader's own have no position: uneven ranks are saved before them
  for (size_t r = 0; r < lengths.size(); ++r) {
    shortest = std::min<uint64_t>(shortest, options.batch == plan::Batch::kPerRank ? lengths[r] / members[r].size() : lengths[r]);
  }
  const uint64_t base = random_() % (expected[0].size() + 1);
  const uint64_t spread = base + static_cast<uint64_t>(options.prefetch) <= shortest ? static_cast<uint64_t>(options.prefetch) : 1;
  std::vector<SinkState> states(n);
  std::vector<Numbers> numbers(n);
  {
    Job job(options, Of({lengths}));
    job.RunTrainers([&](int t) {
      const auto at = static_cast<size_t>(t);
      Iteration iteration(&job, t);
      const bool sees_the_end = base == expected[at].size() && t % 2 == 0;
      iteration.Take(sees_the_end ? ~0ull : base + at % spread);
      const Outcome saved = job.sink(t).Save(&iteration.asker, &states[at]);
      EXPECT_TRUE(saved.ok()) << saved.message;
      numbers[at] = iteration.numbers;
    });
  }
  Job job(options, Of({lengths, lengths}));
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
  job.RunTrainers([&](int t) {
    const auto at = static_cast<size_t>(t);
    const Outcome restored = job.sink(t).Restore(&iterations[at]->asker, states[at]);
    EXPECT_TRUE(restored.ok()) << restored.message;
    EXPECT_FALSE(iterations[at]->Take());
    EXPECT_TRUE(iterations[at]->outcome.ok()) << iterations[at]->outcome.message;
    Append(&numbers[at], iterations[at]->numbers);
    EXPECT_EQ(numbers[at], expected[at]) << "trainer " << t << ", saved at " << base;
  });
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
  options.stall = 5;
  options.timeout = 1;
  Job job(options, Job::Elements(100));
  Iteration alone(&job, 0);
  EXPECT_FALSE(alone.Take());
  EXPECT_EQ(alone.outcome.code, kDeadlineExceeded);
  EXPECT_NE(alone.outcome.message.find("reader 0 on node0 has step 0 and waits for reader 1 on node1, which has not"),
            std::string::npos) << alone.outcome.message;
}

}  // namespace
}  // namespace hvdata
