// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "plan/permutation.h"

namespace hvdata::plan {
namespace {

using Numbers = std::vector<uint64_t>;

Numbers OrderOf(uint64_t n, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(n, seed, epoch);
  Numbers order;
  for (uint64_t position = 0; position < n; ++position) order.push_back(permutation.At(position));
  return order;
}

// The order is a promise: saved epochs are restored with it, and the documentation defines it. The numbers come from a
// program in another language, by that definition.
TEST(Permutation, NeverChanges) {
  EXPECT_EQ(OrderOf(10, 0, 2), (Numbers{8, 2, 9, 1, 5, 3, 4, 6, 7, 0}));
  EXPECT_EQ(OrderOf(10, 7, 3), (Numbers{6, 1, 0, 3, 4, 8, 7, 2, 5, 9}));
  EXPECT_EQ(OrderOf(1, 0, 2), Numbers{0});
  const auto some = [](uint64_t n, uint64_t seed, uint64_t epoch) {
    const Permutation permutation(n, seed, epoch);
    Numbers numbers;
    for (const uint64_t position : {uint64_t{0}, uint64_t{1}, uint64_t{2}, n / 2, n - 1})
      numbers.push_back(permutation.At(position));
    return numbers;
  };
  EXPECT_EQ(some(256, 1, 2), (Numbers{35, 28, 66, 60, 114}));
  EXPECT_EQ(some(257, 1, 2), (Numbers{39, 256, 97, 146, 117}));
  EXPECT_EQ(some(1000003, UINT64_MAX, 2), (Numbers{151217, 316550, 442599, 97297, 275970}));
  EXPECT_EQ(some(uint64_t{1} << 40, 12345, 9),
            (Numbers{301032735731, 724206515136, 1040563107194, 947190947263, 206983532466}));
  EXPECT_EQ(some((uint64_t{1} << 63) + 5, uint64_t{1} << 63, uint64_t{1} << 40),
            (Numbers{8921572150281734316u, 4187645182079946450u, 8670992997643946851u, 8157319435820995734u,
                     876547819767032673u}));
}

TEST(Permutation, HasEveryNumberOnce) {
  for (uint64_t n = 1; n <= 5000; n += n < 300 ? 1 : 97) {
    for (const uint64_t seed : {uint64_t{0}, n * 1000003, UINT64_MAX - n}) {
      const Numbers order = OrderOf(n, seed, 2 + n % 5);
      const std::set<uint64_t> numbers(order.begin(), order.end());
      ASSERT_EQ(numbers.size(), n) << "seed " << seed;
      ASSERT_EQ(*numbers.rbegin(), n - 1) << "seed " << seed;
    }
  }
}

TEST(Permutation, DependsOnTheSeedAndTheEpoch) {
  std::set<Numbers> orders;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t epoch = 1; epoch <= 20; ++epoch) orders.insert(OrderOf(30, seed, epoch));
  }
  EXPECT_EQ(orders.size(), 400u);
}

// The statistic of 119 degrees of freedom has the mean 119 and the deviation 15.4.
TEST(Permutation, GivesAllOrdersOfFiveEquallyOften) {
  std::map<Numbers, int> count;
  constexpr int kSeeds = 60, kEpochs = 200;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (uint64_t epoch = 2; epoch < 2 + kEpochs; ++epoch) ++count[OrderOf(5, seed, epoch)];
  }
  ASSERT_EQ(count.size(), 120u);
  constexpr double kExpected = kSeeds * kEpochs / 120.0;
  double statistic = 0;
  for (const auto& [order, times] : count) statistic += (times - kExpected) * (times - kExpected) / kExpected;
  EXPECT_LT(statistic, 119 + 3 * 15.4);
  EXPECT_GT(statistic, 119 - 3 * 15.4) << "more even than chance";
}

// Of a random order of n numbers, one is at its own place on average, and one is followed by its successor.
TEST(Permutation, KeepsNoMoreNeighboursThanChance) {
  constexpr int kEpochs = 300;
  int fixed = 0, successors = 0;
  for (uint64_t epoch = 2; epoch < 2 + kEpochs; ++epoch) {
    const Numbers order = OrderOf(300, 9, epoch);
    for (size_t i = 0; i < order.size(); ++i) {
      fixed += order[i] == i ? 1 : 0;
      successors += i > 0 && order[i] == order[i - 1] + 1 ? 1 : 0;
    }
  }
  for (const int times : {fixed, successors}) {  // Poisson: the deviation is the root of the mean
    EXPECT_GT(times, kEpochs - 4 * 17.3);
    EXPECT_LT(times, kEpochs + 4 * 17.3);
  }
}

}  // namespace
}  // namespace hvdata::plan
