// SPDX-License-Identifier: Apache-2.0
#include "channel_any_job.h"
#include "texts.h"

namespace hvdata {
namespace {

class OneShape : public AnyJob {
 protected:
  // Every reader's epoch has `length` global batches.
  explicit OneShape() : options_(Shape()) {
    options_.batch = plan::Batch::kGlobal;
    options_.fits_itself = GetParam() % 4 == 3;
  }
  Numbers All(uint64_t epoch, uint64_t length) const {
    return Expected(options_, epoch, Whole(Lengths(static_cast<size_t>(options_.readers), length)))[0];
  }
  Job::Options options_;
};

TEST_P(OneShape, DynamicEpochsWithEarlyCloses) {
  options_.schedule = plan::Schedule::kDynamic;
  Job job(options_, Job::Elements(25));
  constexpr uint64_t kEpochs = 4;
  std::vector<Numbers> got[kEpochs];
  for (auto& epoch : got) epoch.resize(static_cast<size_t>(options_.trainers));
  job.RunTrainers([&](int t) {
    std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
    for (auto& epoch : got) {
      const uint64_t most = t > 0 && mine() % 3 == 0 ? 1 + mine() % 6 : ~0ull;
      Iteration iteration(&job, t);
      for (uint64_t i = 0; i < most && iteration.Take(1); ++i) Dawdle(&mine);
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      epoch[static_cast<size_t>(t)] = iteration.numbers;
    }
  });
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    Numbers all, expected = All(epoch + 1, 25);
    for (const Numbers& mine : got[epoch]) Append(&all, mine);
    std::sort(all.begin(), all.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(all, expected) << "epoch " << epoch + 1;
  }
}

TEST_P(OneShape, AnErrorReachesEveryoneInTheSameStepAndTheNextEpochWorks) {
  const uint64_t failing = GetParam() % 5;
  const int culprit = options_.readers - 1;
  Job job(options_, [&](int reader, uint64_t epoch, uint64_t k, const auto&, bool* end) {
    if (epoch == 1 && reader == culprit && k == failing) return Outcome(15, "record 7 is corrupt");
    *end = k >= 6;
    return Outcome();
  });
  const auto readers = static_cast<uint64_t>(options_.readers);
  const std::string host = (options_.dedicated ? "host" : "node") + std::to_string(culprit);
  job.RunTrainers([&](int t) {
    Iteration first(&job, t);
    EXPECT_FALSE(first.Take());
    EXPECT_EQ(first.outcome.code, 15);
    EXPECT_EQ(first.outcome.Text(), "[reader " + std::to_string(culprit) + " on " + host +
                                        ", channel train, epoch 1, step " + std::to_string(failing) +
                                        (readers > 1 ? " of its own" : "") + "] record 7 is corrupt");
    EXPECT_EQ(first.numbers.size(), failing * readers + readers - 1);
    Iteration second(&job, t);
    EXPECT_FALSE(second.Take());
    EXPECT_TRUE(second.outcome.ok()) << second.outcome.message;
    EXPECT_EQ(second.numbers, All(2, 6));
  });
}

TEST_P(OneShape, ANewerIteratorTakesOver) {
  Job job(options_, Job::Elements(5));
  job.RunTrainers([&](int t) {
    Iteration older(&job, t), newer(&job, t);
    EXPECT_TRUE(older.Take(2));
    EXPECT_TRUE(newer.Take(1));
    EXPECT_FALSE(older.Take(1));
    EXPECT_EQ(older.outcome.code, kFailedPrecondition);
    EXPECT_HAS(older.outcome.message, "this iterator was superseded");
    EXPECT_FALSE(newer.Take());
    EXPECT_TRUE(newer.outcome.ok()) << newer.outcome.message;
    EXPECT_EQ(newer.numbers, All(2, 5));
  });
}

// As zip((ds.prefetch(1), ds.prefetch(1))) does it on every rank.
TEST_P(OneShape, TwoIteratorsAskAtTheSameMoment) {
  Job job(options_, Job::Elements(3));
  for (int round = 0; round < 4; ++round) {
    job.RunTrainers([&](int t) {
      Iteration a(&job, t), b(&job, t);
      std::thread other([&] { a.Take(); });
      b.Take();
      other.join();
      const bool a_won = a.outcome.ok();
      EXPECT_TRUE(a_won || b.outcome.ok()) << a.outcome.message << "\n" << b.outcome.message;
      EXPECT_EQ((a_won ? a : b).numbers.size(), static_cast<size_t>(options_.readers) * 3);
    });
    if (HasFailure()) return;
  }
}

TEST_P(OneShape, ATrainerThatLeavesHoldsNobody) {
  options_.trainers = std::max(2, options_.trainers);
  if (GetParam() % 3 == 0) options_.schedule = plan::Schedule::kDynamic;
  Job job(options_, Job::Elements(8));
  const int leaver = options_.trainers - 1;
  const bool dynamic = options_.schedule == plan::Schedule::kDynamic;
  std::atomic<size_t> total{0};
  job.RunTrainers([&](int t) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      if (t == leaver && epoch == 1) {
        Iteration last(&job, t);
        EXPECT_TRUE(last.Take(1) || dynamic);  // with dynamic, the other ranks may have been quicker
        total += last.numbers.size();
        if (GetParam() % 2) return job.Leave(t);  // in mid-epoch, without a CLOSE
        break;
      }
      Iteration iteration(&job, t);
      while (iteration.Take(1)) {
        // So that the other ranks get shares, too.
        if (dynamic) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      total += iteration.numbers.size();
    }
    job.Leave(t);
  });
  const auto n = static_cast<size_t>(options_.trainers), readers = static_cast<size_t>(options_.readers);
  EXPECT_EQ(total, dynamic ? readers * 3 * 8 : readers * 8 * (3 * (n - 1) + 1) + 1);
}

// Some ranks have seen the end. The others took the last step and have not asked again, or are further behind.
TEST_P(OneShape, SomeAreExhaustedWhenAllSave) {
  options_.readers = 1;
  options_.verify =
      // At the end of such an epoch, some ranks wait seconds for a message of the others.
      options_.verify && GetParam() == 1;
  options_.fits_itself = false;
  const uint64_t length =
      static_cast<uint64_t>(options_.prefetch++);  // the end can be seen though a rank has taken nothing
  std::vector<SinkState> states(static_cast<size_t>(options_.trainers));
  std::vector<Numbers> numbers(states.size());
  const auto exhausted = [&](int t) { return (static_cast<unsigned>(t) + GetParam()) % 2 == 0; };
  std::atomic<int> out{0};
  Job before(options_, Job::Elements(length));
  before.RunTrainers([&](int t) {
    Iteration iteration(&before, t);
    // A reader that trains begins when its own rank does.
    const uint64_t least = options_.dedicated ? 0 : 1;
    iteration.Take(exhausted(t) ? ~0ull : std::max(least, GetParam() % (length + 1)));
    SinkState& state = states[static_cast<size_t>(t)];
    EXPECT_TRUE(before.sink(t).Save(&iteration.iterator, &state).ok());
    EXPECT_EQ(state.kind == SinkState::kExhausted, exhausted(t));
    numbers[static_cast<size_t>(t)] = iteration.numbers;
    for (++out; out < options_.trainers;) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  Job job(options_, Job::Elements(length));
  job.RunTrainers([&](int t) {
    {
      Iteration rest(&job, t);
      EXPECT_TRUE(rest.Restore(states[static_cast<size_t>(t)]).ok());
      EXPECT_FALSE(rest.Take());
      EXPECT_TRUE(rest.outcome.ok()) << rest.outcome.message;
      Numbers& all = numbers[static_cast<size_t>(t)];
      Append(&all, rest.numbers);
      EXPECT_EQ(all, All(1, length));
    }
    Iteration next(&job, t);
    EXPECT_FALSE(next.Take());
    EXPECT_EQ(next.numbers, All(2, length)) << next.outcome.message;
  });
}

INSTANTIATE_TEST_SUITE_P(Seeds, OneShape, testing::Range(0u, 12u));

TEST(OneJob, RestoringIntoAnEpochThatIsUnderWayFailsItForAll) {
  Job job({}, Job::Elements(100));
  Iteration first(&job, 0), second(&job, 1);
  EXPECT_TRUE(first.Take(1));
  const Outcome restored =
      second.Restore({SinkState::kRunning, 1, 1, 2, TailStep(0), {{Position(3), Turn(3), "0 3 0"}}});
  EXPECT_EQ(restored.code, kFailedPrecondition);
  EXPECT_HAS(restored.message, "rank 1 on node1 restored a checkpoint into epoch 1, which another rank has begun");
  EXPECT_FALSE(first.Take());
  EXPECT_EQ(first.outcome.code, kFailedPrecondition);
  EXPECT_HAS(first.outcome.message, "rank 1 on node1 restored a checkpoint");
}

// An epoch's number counts over all runs. The next run continues with the number in the checkpoint, on every rank.
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
  const auto rest = job.Iterations();
  EXPECT_TRUE(rest[0]->Restore(state).ok());
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
  Job job({}, [&](int, uint64_t epoch, uint64_t k, const std::function<bool()>& cancelled, bool* end) {
    pulling = pulling || (epoch == 1 && k == 1);
    while (epoch == 1 && k == 1 && !cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    was_cancelled = was_cancelled || cancelled();
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
    EXPECT_EQ(second.numbers, (Numbers{Number(2, 0, 0), Number(2, 0, 1)}));
  });
  EXPECT_TRUE(was_cancelled);
}

TEST(OneJob, WhoWaitsForWhom) {
  Job::Options options;
  options.stall = 2;  // the rank asks after one second; the reader would report by itself after two
  options.timeout = 4;
  Job job(options, Job::Elements(100));
  Iteration alone(&job, 0);
  const std::string log = AnySeconds(LinesOf([&] { EXPECT_FALSE(alone.Take()); }));
  EXPECT_EQ(alone.numbers.size(), 2u);
  const std::string reason =
      "waited N s for step 2 from reader 0 on node0: reader 0 on node0 has dealt 2 steps and "
      "waits until rank 1 on node1 (has not begun this epoch) has taken more of them";
  EXPECT_EQ(log.find("horovod_data: [rank 0 on node0, channel train, epoch 1, step 2] has " + reason + "\n"), 0u)
      << log;
  EXPECT_EQ(alone.outcome.code, kDeadlineExceeded);
  EXPECT_EQ(AnySeconds(alone.outcome.Text()),
            "[rank 0 on node0, channel train, epoch 1, step 2] " + reason +
                ". Fix the cause, or raise the limit with HOROVOD_DATA_TIMEOUT (seconds; 0: never)");
}

}  // namespace
}  // namespace hvdata
