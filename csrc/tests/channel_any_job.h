// SPDX-License-Identifier: Apache-2.0
// Whole jobs of every shape: readers of random lengths, trainers at random speeds, and the shares that each trainer
// must get.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "channel_job.h"

namespace hvdata {

using Numbers = std::vector<uint64_t>;
using Lengths = std::vector<uint64_t>;

inline void Dawdle(std::mt19937* random) {
  if ((*random)() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds((*random)() % 300));
}

inline void Append(Numbers* all, const Numbers& more) { all->insert(all->end(), more.begin(), more.end()); }

// The part of an epoch that one reader must deal: elements [begin, end). Its next step has the number `turn`.
struct Stretch {
  uint64_t begin = 0, end = 0, turn = 0;
};

inline std::vector<Stretch> Whole(const Lengths& lengths) {
  std::vector<Stretch> all;
  for (uint64_t length : lengths) all.push_back({0, length, 0});
  return all;
}

// Each trainer's shares, as the documentation describes them. In round k every reader that has a k-th whole step deals
// it. Then the leftovers are dealt one to each trainer in turn, those of reader 0 first.
inline std::vector<Numbers> Expected(const Job::Options& options, uint64_t epoch, std::vector<Stretch> readers) {
  const bool per_rank = options.batch == plan::Batch::kPerRank;
  const auto n = static_cast<size_t>(options.trainers);
  const size_t whole = per_rank ? n : 1;
  std::vector<Numbers> shares(n);
  const auto number = [&](size_t r, uint64_t k) { return Number(epoch, static_cast<int>(r), k); };
  for (;;) {
    size_t best = readers.size();
    for (size_t r = 0; r < readers.size(); ++r) {
      if (readers[r].end - readers[r].begin < whole) continue;
      if (best == readers.size() || readers[r].turn < readers[best].turn) best = r;
    }
    if (best == readers.size()) break;
    for (size_t t = 0; t < n; ++t) shares[t].push_back(number(best, readers[best].begin + (per_rank ? t : 0)));
    readers[best].begin += whole;
    ++readers[best].turn;
  }
  Numbers left;
  for (size_t r = 0; r < readers.size(); ++r) {
    for (uint64_t k = readers[r].begin; k < readers[r].end; ++k) left.push_back(number(r, k));
  }
  for (size_t first = 0; first < left.size(); first += n) {
    if (first + n > left.size() && options.remainder == plan::Remainder::kDrop) break;
    for (size_t t = 0; t < n; ++t)
      shares[t].push_back(first + t < left.size() ? left[first + t] : left[first] + kFiller);
  }
  return shares;
}

class AnyJob : public testing::TestWithParam<unsigned> {
 protected:
  // One to three readers, which train or are dedicated. Readers that share trainers have per-rank batches or global
  // ones.
  static Job::Options Shape() {
    const unsigned seed = GetParam();
    Job::Options options;
    options.seed = seed;
    options.dedicated = seed % 2 == 0;
    options.readers = 1 + static_cast<int>(seed / 2 % 3);
    options.trainers = 1 + static_cast<int>(seed / 6 % 4);
    if (!options.dedicated) options.trainers = std::max(options.trainers, options.readers);
    options.prefetch = 1 + static_cast<int>(seed % 4);
    options.batch = seed % 5 == 0 ? plan::Batch::kGlobal : plan::Batch::kPerRank;
    options.remainder = static_cast<plan::Remainder>(seed % 3);
    options.saves = seed % 4 != 1;
    return options;
  }
  Lengths RandomLengths(int readers, uint64_t most) {
    Lengths lengths;
    for (int r = 0; r < readers; ++r) lengths.push_back(random_() % 4 == 0 ? 0 : random_() % (most + 1));
    return lengths;
  }
  static Job::Pipeline Of(const std::vector<Lengths>& epochs) {
    return [epochs](int reader, uint64_t epoch, uint64_t k, const auto&, bool* end) {
      if (k % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(k * 37 % 200));
      *end = k >= epochs[epoch - 1][static_cast<size_t>(reader)];
      return Outcome();
    };
  }
  using Shares = std::function<std::vector<Numbers>(uint64_t epoch, const Lengths& lengths)>;

  // Every trainer gets its shares of several epochs, some of which it leaves early.
  void RunEpochs(const Job::Options& options, const Shares& shares, bool leave_early) {
    std::vector<Lengths> epochs;
    for (int e = 0; e < 4; ++e) epochs.push_back(RandomLengths(options.readers, 12));
    Job job(options, Of(epochs));
    job.RunTrainers([&](int t) {
      std::mt19937 mine(GetParam() * 8 + static_cast<unsigned>(t));
      for (uint64_t epoch = 1; epoch <= epochs.size(); ++epoch) {
        Numbers expected = shares(epoch, epochs[epoch - 1])[static_cast<size_t>(t)];
        const uint64_t most = leave_early && mine() % 4 == 0 ? 1 + mine() % 6 : ~0ull;
        Iteration iteration(&job, t);
        for (uint64_t i = 0; i < most && iteration.Take(1); ++i) Dawdle(&mine);
        EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
        if (most < expected.size()) expected.resize(most);
        EXPECT_EQ(iteration.numbers, expected) << "trainer " << t << ", epoch " << epoch;
      }
    });
  }

  // Trainer t takes `taken(t)` shares and saves. `alone`: rank 0 alone saves.
  struct Saved {
    std::vector<SinkState> states;
    std::vector<Numbers> numbers;
  };
  static Saved Save(const Job::Options& options, const Lengths& lengths, const std::function<uint64_t(size_t)>& taken,
                    bool alone = false) {
    Saved saved{std::vector<SinkState>(alone ? 1 : static_cast<size_t>(options.trainers)),
                std::vector<Numbers>(static_cast<size_t>(options.trainers))};
    Job job(options, Of({lengths}));
    job.RunTrainers([&](int t) {
      const auto at = static_cast<size_t>(t);
      Iteration iteration(&job, t);
      iteration.Take(taken(at));
      EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
      saved.numbers[at] = iteration.numbers;
      if (at >= saved.states.size()) return;
      const Outcome outcome = job.sink(t).Save(&iteration.iterator, &saved.states[at]);
      EXPECT_TRUE(outcome.ok()) << outcome.message;
    });
    return saved;
  }
  // A new job resumes from there and gives every trainer the rest of `expected`.
  static void GoOn(const Job::Options& options, const Lengths& lengths, Saved saved,
                   const std::vector<Numbers>& expected) {
    Job job(options, Of({lengths, lengths}));
    const auto iterations = job.Iterations();
    const auto restore = [&](size_t t) {
      const Outcome outcome = iterations[t]->Restore(saved.states[t]);
      EXPECT_TRUE(outcome.ok()) << outcome.message;
    };
    if (saved.states.size() == 1) restore(0);
    saved.numbers.resize(expected.size());
    job.RunTrainers([&](int t) {
      const auto at = static_cast<size_t>(t);
      if (saved.states.size() > 1) restore(at);
      const size_t before = saved.numbers[at].size();
      EXPECT_FALSE(iterations[at]->Take());
      EXPECT_TRUE(iterations[at]->outcome.ok()) << iterations[at]->outcome.message;
      Append(&saved.numbers[at], iterations[at]->numbers);
      EXPECT_EQ(saved.numbers[at], expected[at]) << "trainer " << t << ", saved at " << before;
    });
  }

  std::mt19937 random_{GetParam()};
};

}  // namespace hvdata
