// SPDX-License-Identifier: Apache-2.0
// Whole jobs of several readers of random lengths, at random speeds.
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

  // Trainer t takes `taken(t)` shares and saves; a new job goes on from there and gives it the rest of `expected[t]`.
  // `later`: the new job's options.
  void SaveAndGoOn(const Job::Options& options, const Job::Options& later, const Lengths& lengths,
                   const std::vector<Numbers>& expected, const std::function<uint64_t(size_t)>& taken) {
    const auto n = static_cast<size_t>(options.trainers);
    std::vector<SinkState> states(n);
    std::vector<Numbers> numbers(n);
    {
      Job job(options, Of({lengths}));
      job.RunTrainers([&](int t) {
        const auto at = static_cast<size_t>(t);
        Iteration iteration(&job, t);
        iteration.Take(taken(at));
        EXPECT_TRUE(iteration.outcome.ok()) << iteration.outcome.message;
        const Outcome saved = job.sink(t).Save(&iteration.iterator, &states[at]);
        EXPECT_TRUE(saved.ok()) << saved.message;
        numbers[at] = iteration.numbers;
      });
    }
    Job job(later, Of({lengths, lengths}));
    std::vector<std::unique_ptr<Iteration>> iterations;
    for (int t = 0; t < options.trainers; ++t) iterations.push_back(std::make_unique<Iteration>(&job, t));
    job.RunTrainers([&](int t) {
      const auto at = static_cast<size_t>(t);
      const Outcome restored = job.sink(t).Restore(&iterations[at]->iterator, states[at]);
      EXPECT_TRUE(restored.ok()) << restored.message;
      EXPECT_FALSE(iterations[at]->Take());
      EXPECT_TRUE(iterations[at]->outcome.ok()) << iterations[at]->outcome.message;
      Append(&numbers[at], iterations[at]->numbers);
      EXPECT_EQ(numbers[at], expected[at]) << "trainer " << t << ", saved at " << taken(at);
    });
  }

  std::mt19937 random_{GetParam()};
};

}  // namespace hvdata
