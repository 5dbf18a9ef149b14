// SPDX-License-Identifier: Apache-2.0
#include "channel_job.h"

#include "captured_lines.h"

namespace hvdata {
namespace {

using Numbers = std::vector<uint64_t>;

// Epoch `epoch` of readers with these lengths: in round k every reader that has a k-th step deals it.
Numbers InRounds(uint64_t epoch, const std::vector<uint64_t>& lengths) {
  Numbers numbers;
  for (uint64_t k = 0; k < *std::max_element(lengths.begin(), lengths.end()); ++k) {
    for (size_t r = 0; r < lengths.size(); ++r) {
      if (k < lengths[r]) numbers.push_back(Number(epoch, static_cast<int>(r), k));
    }
  }
  return numbers;
}

void Dawdle(std::mt19937* random) {
  if ((*random)() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 300));
}

// Every shape of a job in turn: readers that train, dedicated ones, one to three of them.
Job::Options Shape(unsigned seed) {
  Job::Options options;
  options.seed = seed;
  options.dedicated = seed % 2 == 0;
  options.readers = 1 + static_cast<int>(seed / 2 % 3);
  options.trainers = 1 + static_cast<int>(seed % 4);
  if (!options.dedicated) options.trainers = std::max(options.trainers, options.readers);
  options.prefetch = 1 + static_cast<int>(seed % 3);
  options.fits_itself = seed % 4 == 3;
  return options;
}

class AnyJob : public testing::TestWithParam<unsigned> {};

TEST_P(AnyJob, StaticEpochsBackToBackWithEarlyCloses) {
  const Job::Options options = Shape(GetParam());
  std::mt19937 random(GetParam());
  std::vector<std::vector<uint64_t>> lengths(5, std::vector<uint64_t>(static_cast<size_t>(options.readers)));
  for (auto& epoch : lengths) {
    for (uint64_t& length : epoch) length = random() % 12;
  }
  Job job(options, [&](int reader, uint64_t epoch, uint64_t k, const std::atomic<bool>&, bool* end) {
    *end = k >= lengths[epoch - 1][static_cast<size_t>(reader)];
    return Outcome();
  });
  job.RunTrainers([&](int t) {
    std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
    for (uint64_t epoch = 1; epoch <= lengths.size(); ++epoch) {
      Numbers expected = InRounds(epoch, lengths[epoch - 1]);
      const uint64_t most = mine() % 3 == 0 ? 1 + mine() % 6 : ~0ull;
      Iteration iteration(&job, t);
      for (uint64_t i = 0; i < most && iteration.Take(1); ++i) Dawdle(&mine);
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      if (most < expected.size()) expected.resize(most);
      EXPECT_EQ(iteration.numbers, expected) << "trainer " << t << ", epoch " << epoch;
    }
  });
}

TEST_P(AnyJob, DynamicEpochsWithEarlyCloses) {
  Job::Options options = Shape(GetParam());
  options.readers = 1;
  options.schedule = plan::Schedule::kDynamic;
  Job job(options, Job::Elements(25));
  constexpr uint64_t kEpochs = 4;
  std::vector<std::vector<Numbers>> got(static_cast<size_t>(options.trainers), std::vector<Numbers>(kEpochs));
  job.RunTrainers([&](int t) {
    std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const uint64_t most = t > 0 && mine() % 3 == 0 ? 1 + mine() % 6 : ~0ull;
      Iteration iteration(&job, t);
      for (uint64_t i = 0; i < most && iteration.Take(1); ++i) Dawdle(&mine);
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      got[static_cast<size_t>(t)][epoch] = iteration.numbers;
    }
  });
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    Numbers all;
    for (const auto& mine : got) all.insert(all.end(), mine[epoch].begin(), mine[epoch].end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, InRounds(epoch + 1, {25})) << "epoch " << epoch + 1;
  }
}

TEST_P(AnyJob, AnErrorReachesEveryoneInTheSameStepAndTheNextEpochWorks) {
  const Job::Options options = Shape(GetParam());
  const uint64_t failing = GetParam() % 5;
  const int culprit = options.readers - 1;
  Job job(options, [&](int reader, uint64_t epoch, uint64_t k, const std::atomic<bool>&, bool* end) {
    if (epoch == 1 && reader == culprit && k == failing) return Outcome(15, "record 7 is corrupt");
    *end = k >= 6;
    return Outcome();
  });
  const auto readers = static_cast<uint64_t>(options.readers);
  const std::string host = (options.dedicated ? "host" : "node") + std::to_string(culprit);
  job.RunTrainers([&](int t) {
    Iteration first(&job, t);
    EXPECT_FALSE(first.Take());
    EXPECT_EQ(first.outcome.code, 15);
    EXPECT_EQ(first.outcome.message, "[reader " + std::to_string(culprit) + " on " + host +
                                         ", channel train, epoch 1, step " + std::to_string(failing) +
                                         (readers > 1 ? " of its own" : "") + "] record 7 is corrupt");
    EXPECT_EQ(first.numbers.size(), failing * readers + readers - 1);
    Iteration second(&job, t);
    EXPECT_FALSE(second.Take());
    EXPECT_TRUE(second.outcome.ok()) << second.outcome.message;
    EXPECT_EQ(second.numbers, InRounds(2, std::vector<uint64_t>(readers, 6)));
  });
}

TEST_P(AnyJob, ANewerIteratorTakesOver) {
  Job job(Shape(GetParam()), Job::Elements(5));
  const auto readers = static_cast<size_t>(Shape(GetParam()).readers);
  job.RunTrainers([&](int t) {
    Iteration older(&job, t), newer(&job, t);
    EXPECT_TRUE(older.Take(2));
    EXPECT_TRUE(newer.Take(1));
    EXPECT_FALSE(older.Take(1));
    EXPECT_EQ(older.outcome.code, kFailedPrecondition);
    EXPECT_NE(older.outcome.message.find("this iterator was superseded"), std::string::npos);
    EXPECT_FALSE(newer.Take());
    EXPECT_TRUE(newer.outcome.ok()) << newer.outcome.message;
    EXPECT_EQ(newer.numbers, InRounds(2, std::vector<uint64_t>(readers, 5)));
  });
}

// As zip((ds.prefetch(1), ds.prefetch(1))) does it on every rank.
TEST_P(AnyJob, TwoIteratorsAskAtTheSameMoment) {
  Job job(Shape(GetParam()), Job::Elements(3));
  const auto readers = static_cast<size_t>(Shape(GetParam()).readers);
  for (int round = 0; round < 4; ++round) {
    job.RunTrainers([&](int t) {
      Iteration a(&job, t), b(&job, t);
      std::thread other([&] { a.Take(); });
      b.Take();
      other.join();
      const bool a_won = a.outcome.ok();
      EXPECT_TRUE(a_won || b.outcome.ok()) << a.outcome.message << "\n" << b.outcome.message;
      EXPECT_EQ((a_won ? a : b).numbers.size(), readers * 3);
    });
    if (HasFailure()) return;
  }
}

TEST_P(AnyJob, ATrainerThatLeavesHoldsNobody) {
  Job::Options options = Shape(GetParam());
  options.trainers = std::max(2, options.trainers);
  if (GetParam() % 3 == 0) {
    options.readers = 1;
    options.schedule = plan::Schedule::kDynamic;
  }
  Job job(options, Job::Elements(8));
  const int leaver = options.trainers - 1;
  const bool dynamic = options.schedule == plan::Schedule::kDynamic;
  std::atomic<size_t> total{0};
  job.RunTrainers([&](int t) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      if (t == leaver && epoch == 1) {
        Iteration last(&job, t);
        EXPECT_TRUE(last.Take(1) || dynamic);  // under dynamic the others may have been quicker
        total += last.numbers.size();
        if (GetParam() % 2) return job.Leave(t);  // in mid-epoch, without a CLOSE
        break;
      }
      Iteration iteration(&job, t);
      while (iteration.Take(1)) {
        if (dynamic) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the others get some too
      }
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      total += iteration.numbers.size();
    }
    job.Leave(t);
  });
  const auto n = static_cast<size_t>(options.trainers), readers = static_cast<size_t>(options.readers);
  EXPECT_EQ(total, dynamic ? 3 * 8 : readers * 8 * (3 * (n - 1) + 1) + 1);
}

TEST_P(AnyJob, SaveAndRestoreContinueTheOrder) {
  Job::Options options = Shape(GetParam());
  options.readers = 1;
  const bool everyone = GetParam() % 2;  // or rank 0 alone, where all stand at the same step
  std::vector<SinkState> states(static_cast<size_t>(options.trainers));
  std::vector<Numbers> numbers(states.size());
  {
    Job job(options, Job::Elements(9));
    job.RunTrainers([&](int t) {
      Iteration iteration(&job, t);
      const auto ahead = everyone ? static_cast<uint64_t>(t % options.prefetch) : 0;
      EXPECT_TRUE(iteration.Take(3 + ahead));
      const Outcome saved = job.sink(t).Save(&iteration.iterator, &states[static_cast<size_t>(t)]);
      EXPECT_TRUE(saved.ok()) << saved.message;
      ASSERT_EQ(states[static_cast<size_t>(t)].lanes.size(), 1u);
      EXPECT_EQ(states[static_cast<size_t>(t)].lanes[0].position.n, 3 + ahead);
      EXPECT_EQ(states[static_cast<size_t>(t)].lanes[0].turn.n, 3 + ahead);
      EXPECT_EQ(states[static_cast<size_t>(t)].kind, SinkState::kRunning);
      numbers[static_cast<size_t>(t)] = iteration.numbers;
    });
  }
  Job job(options, Job::Elements(9));
  if (!everyone) states.resize(1);
  std::vector<std::unique_ptr<Iteration>> iterations;
  for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
  for (size_t t = 0; t < states.size(); ++t) {
    const Outcome restored = job.sink(static_cast<int>(t)).Restore(&iterations[t]->iterator, states[t]);
    EXPECT_TRUE(restored.ok()) << restored.message;
  }
  job.RunTrainers([&](int t) {
    Iteration& iteration = *iterations[static_cast<size_t>(t)];
    EXPECT_FALSE(iteration.Take());
    EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
    Numbers& all = numbers[static_cast<size_t>(t)];
    all.insert(all.end(), iteration.numbers.begin(), iteration.numbers.end());
    EXPECT_EQ(all, InRounds(1, {9}));
    SinkState after;
    EXPECT_TRUE(job.sink(t).Save(&iteration.iterator, &after).ok());
    EXPECT_EQ(after.kind, SinkState::kExhausted);
  });
}

// Some have seen the end, the others took the last step and have not asked again, or are further behind.
TEST_P(AnyJob, SomeAreExhaustedWhenAllSave) {
  Job::Options options = Shape(GetParam());
  options.readers = 1;
  options.verify =
      options.verify && GetParam() == 1;  // at the end of such an epoch some wait for the others' word, for seconds
  options.fits_itself = false;
  const uint64_t length =
      static_cast<uint64_t>(options.prefetch++);  // the end can be seen though a rank has taken nothing
  std::vector<SinkState> states(static_cast<size_t>(options.trainers));
  std::vector<Numbers> numbers(states.size());
  const auto exhausted = [&](int t) { return (static_cast<unsigned>(t) + GetParam()) % 2 == 0; };
  std::atomic<int> out{0};
  Job before(options, Job::Elements(length));
  before.RunTrainers([&](int t) {
    Iteration iteration(&before, t);
    iteration.Take(exhausted(t) ? ~0ull : GetParam() % (length + 1));
    SinkState& state = states[static_cast<size_t>(t)];
    EXPECT_TRUE(before.sink(t).Save(&iteration.iterator, &state).ok());
    EXPECT_EQ(state.kind == SinkState::kExhausted, exhausted(t));
    numbers[static_cast<size_t>(t)] = iteration.numbers;
    for (++out; out < options.trainers;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  Job job(options, Job::Elements(length));
  job.RunTrainers([&](int t) {
    {
      Iteration rest(&job, t);
      EXPECT_TRUE(job.sink(t).Restore(&rest.iterator, states[static_cast<size_t>(t)]).ok());
      EXPECT_FALSE(rest.Take());
      EXPECT_TRUE(rest.outcome.ok()) << rest.outcome.message;
      Numbers& all = numbers[static_cast<size_t>(t)];
      all.insert(all.end(), rest.numbers.begin(), rest.numbers.end());
      EXPECT_EQ(all, InRounds(1, {length}));
    }
    Iteration next(&job, t);
    EXPECT_FALSE(next.Take());
    EXPECT_EQ(next.numbers, InRounds(2, {length})) << next.outcome.message;
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyJob, testing::Range(0u, 12u));

TEST(OneJob, RestoringIntoAnEpochThatIsUnderWayFailsItForAll) {
  Job job({}, Job::Elements(100));
  Iteration first(&job, 0), second(&job, 1);
  EXPECT_TRUE(first.Take(1));
  const Outcome restored = job.sink(1).Restore(
      &second.iterator, {SinkState::kRunning, 1, 1, 2, TailStep(0), {{Position(3), Turn(3), "0 3 0"}}});
  EXPECT_EQ(restored.code, kFailedPrecondition);
  EXPECT_NE(restored.message.find("rank 1 on node1 restored a checkpoint into epoch 1, which another rank has begun"),
            std::string::npos)
      << restored.message;
  EXPECT_FALSE(first.Take());
  EXPECT_EQ(first.outcome.code, kFailedPrecondition);
  EXPECT_NE(first.outcome.message.find("rank 1 on node1 restored a checkpoint"), std::string::npos);
}

// An epoch's number over all runs: what a checkpoint was saved in counts on in the next run, on every rank.
TEST(OneJob, EpochsAreNumberedOverRuns) {
  SinkState state;
  {
    Job job({}, Job::Elements(4));
    job.RunTrainers([&](int t) {
      EXPECT_FALSE(Iteration(&job, t).Take());
      Iteration second(&job, t);
      EXPECT_TRUE(second.Take(2));
      if (t > 0) return;
      EXPECT_TRUE(job.sink(t).Save(&second.iterator, &state).ok());
      EXPECT_EQ(state.number, 2u);
    });
  }
  Job job({}, Job::Elements(4));
  std::vector<std::unique_ptr<Iteration>> rest;
  for (int t = 0; t < 2; ++t) rest.push_back(std::make_unique<Iteration>(&job, t));
  EXPECT_TRUE(job.sink(0).Restore(&rest[0]->iterator, state).ok());
  job.RunTrainers([&](int t) {  // rank 1 has restored nothing
    EXPECT_TRUE(rest[static_cast<size_t>(t)]->Take(1));
    SinkState running;
    EXPECT_TRUE(job.sink(t).Save(&rest[static_cast<size_t>(t)]->iterator, &running).ok());
    EXPECT_EQ(running.number, 2u) << "rank " << t;
    EXPECT_EQ(running.epoch, 1u);
    EXPECT_FALSE(rest[static_cast<size_t>(t)]->Take());
    Iteration next(&job, t);
    EXPECT_TRUE(next.Take(1));
    SinkState after;
    EXPECT_TRUE(job.sink(t).Save(&next.iterator, &after).ok());
    EXPECT_EQ(after.number, 3u) << "rank " << t;
    EXPECT_EQ(after.epoch, 2u);
  });
}

TEST(OneJob, ClosingEverywhereCancelsThePull) {
  std::atomic<bool> pulling{false}, was_cancelled{false};
  Job job({}, [&](int, uint64_t epoch, uint64_t k, const std::atomic<bool>& cancelled, bool* end) {
    pulling = pulling || (epoch == 1 && k == 1);
    while (epoch == 1 && k == 1 && !cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    was_cancelled = was_cancelled || cancelled;
    *end = k >= 2;
    return Outcome();
  });
  job.RunTrainers([&](int t) {
    {
      Iteration first(&job, t);
      EXPECT_TRUE(first.Take(1));
      while (!pulling) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    Iteration second(&job, t);
    EXPECT_FALSE(second.Take());
    EXPECT_EQ(second.numbers, InRounds(2, {2}));
  });
  EXPECT_TRUE(was_cancelled);
}

TEST(OneJob, ADynamicRankThatStopsTakingHoldsNobody) {
  Job::Options options;
  options.schedule = plan::Schedule::kDynamic;
  options.prefetch = 4;
  Job job(options, Job::Elements(20));
  Iteration idle(&job, 0), busy(&job, 1);
  EXPECT_TRUE(idle.Take(1));
  EXPECT_FALSE(busy.Take());
  EXPECT_TRUE(busy.outcome.ok()) << busy.outcome.message;
  EXPECT_EQ(busy.numbers.size(), 19u);
  EXPECT_FALSE(idle.Take());
  EXPECT_TRUE(idle.outcome.ok() && idle.numbers.size() == 1);
}

TEST(OneJob, WhoWaitsForWhom) {
  Job::Options options;
  options.stall = 2;  // the rank asks after one, and the reader would speak by itself after two
  options.timeout = 4;
  Job job(options, Job::Elements(100));
  Iteration alone(&job, 0);
  CaptureLines();
  EXPECT_FALSE(alone.Take());
  const std::string log = AnySeconds(CapturedLines());
  EXPECT_EQ(alone.numbers.size(), 2u);
  const std::string reason =
      "waited N s for step 2 from reader 0 on node0: reader 0 on node0 has dealt 2 steps and "
      "waits until rank 1 on node1 (has not begun this epoch) has taken more of them";
  EXPECT_EQ(log.find("horovod_data: [rank 0 on node0, channel train, epoch 1, step 2] has " + reason + "\n"), 0u)
      << log;
  EXPECT_EQ(alone.outcome.code, kDeadlineExceeded);
  EXPECT_EQ(AnySeconds(alone.outcome.message),
            "[rank 0 on node0, channel train, epoch 1, step 2] " + reason +
                ". Mend that, or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)");
}

}  // namespace
}  // namespace hvdata
